"""Parses a shell script: lists, pipes, if, for, while, case and functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...runfile.text.errors import InputError
from .bounds import Work, check_depth
from .nodes import (
    Arithmetic,
    Background,
    Case,
    For,
    Function,
    If,
    Joined,
    Not,
    Redirect,
    ShellGroup,
    Simple,
    While,
)
from .tokens import ShellToken, tokens_of

REDIRECTS = frozenset({"<", ">", ">>", "<<<", "<&", ">&", "<>", ">|", "&>", "&>>"})
SEPARATORS = frozenset({";", "&"})
ENDS_OF_CASE = frozenset({";;", ";&", ";;&"})


def parse(text: str, work: Work, depth: int = 0) -> list[Any]:
    """The commands of a script."""
    parser = _TreeParser(tokens_of(text, work), depth)
    body = parser.body(())
    if parser.token is not None:
        raise parser.unexpected("a command")
    return body


class _TreeParser:
    def __init__(self, tokens: list[ShellToken], depth: int) -> None:
        self.tokens, self.at, self.depth = tokens, 0, depth

    @property
    def token(self) -> ShellToken | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def next(self) -> ShellToken:
        if self.token is None:
            raise InputError("the shell script ends within a command")
        self.at += 1
        return self.tokens[self.at - 1]

    def sees(self, kind: str, *texts: str) -> bool:
        token = self.token
        return token is not None and token.kind == kind and (not texts or token.text in texts)

    def takes(self, kind: str, *texts: str) -> bool:
        seen = self.sees(kind, *texts)
        self.at += seen
        return seen

    def expect(self, word: str) -> None:
        if not self.takes("word", word) and not self.takes("operator", word):
            raise self.unexpected(repr(word))

    def unexpected(self, wanted: str) -> InputError:
        found = self.token.text if self.token else "its end"
        return InputError(f"the shell script has {found!r} where {wanted} should be")

    def skip_lines(self) -> None:
        while self.takes("newline") or self.takes("operator", ";"):
            pass

    def body(self, ends: tuple[str, ...]) -> list[Any]:
        """Commands up to one of the words, which is not read."""
        found: list[Any] = []
        while True:
            while self.takes("newline") or self.takes("operator", *SEPARATORS):
                pass
            at_end = self.token is None or self.sees("word", *ends or ("",))
            if at_end or self.sees("operator", ")", *ENDS_OF_CASE):
                return found
            command = self.joined()
            found.append(Background(command) if self.sees("operator", "&") else command)

    def joined(self) -> Any:
        first, rest = self.command(), []
        while self.sees("operator", "&&", "||", "|", "|&"):
            operator = self.next().text
            self.skip_lines()
            rest.append(("|" if operator == "|&" else operator, self.command()))
        return Joined(first, rest) if rest else first

    def command(self) -> Any:
        self.depth += 1
        check_depth(self.depth)
        result = self.any_command()
        self.depth -= 1
        return result

    def any_command(self) -> Any:
        if self.takes("word", "!"):
            return Not(self.command())
        if self.sees("arithmetic"):
            return Arithmetic(self.next().text)
        if self.takes("operator", "("):
            return self.group(")", subshell=True)
        if self.sees("word") and self.token is not None:
            read = COMPOUND.get(self.token.text)
            if read:
                self.at += 1
                result = read(self)
                self.redirects()
                return result
        return self.simple()

    def group(self, end: str, *, subshell: bool) -> ShellGroup:
        body = self.body((end,))
        self.expect(end)
        return ShellGroup(body, subshell, self.redirects())

    def simple(self) -> Any:
        command = Simple()
        while self.token is not None:
            if self.sees("word"):
                command.words.append(self.next().text)
                if command.words == ["[["]:
                    self.read_test(command)
                elif len(command.words) == 1 and self.takes("operator", "("):
                    self.expect(")")
                    self.skip_lines()
                    return Function(command.words[0], [self.command()])
            elif not self.redirect(command.redirects):
                break
        if not command.words and not command.redirects:
            raise self.unexpected("a command")
        return command

    def read_test(self, command: Simple) -> None:
        """Reads up to `]]`; operators are words in it."""
        while command.words[-1] != "]]":
            token = self.next()
            if token.kind != "newline":
                command.words.append(token.text)

    def redirects(self) -> list[Redirect]:
        found: list[Redirect] = []
        while self.redirect(found):
            pass
        return found

    def redirect(self, found: list[Redirect]) -> bool:
        """Reads a redirection, where one comes next."""
        if self.sees("heredoc"):
            token = self.next()
            found.append(Redirect("<<", token.text, token.body, token.quoted))
            return True
        if not self.sees("operator", *REDIRECTS):
            return False
        operator = self.next().text
        found.append(Redirect(operator, self.next().text))
        return True

    def if_(self) -> If:
        branches, otherwise = [], []
        while True:
            condition = self.body(("then",))
            self.expect("then")
            branches.append((condition, self.body(("elif", "else", "fi"))))
            if not self.takes("word", "elif"):
                break
        if self.takes("word", "else"):
            otherwise = self.body(("fi",))
        self.expect("fi")
        return If(branches, otherwise)

    def for_(self) -> Any:
        if self.sees("arithmetic"):
            return self.counting_for(self.next().text)
        name, words = self.next().text, None
        self.skip_lines()
        if self.takes("word", "in"):
            words = []
            while self.sees("word"):
                words.append(self.next().text)
        return For(name, words, self.do_body())

    def counting_for(self, text: str) -> ShellGroup:
        parts = [*text.split(";"), "", ""]
        condition = [Arithmetic(parts[1])] if parts[1].strip() else []
        loop = While(condition, [*self.do_body(), Arithmetic(parts[2])])
        return ShellGroup([Arithmetic(parts[0]), loop], subshell=False)

    def do_body(self) -> list[Any]:
        self.skip_lines()
        self.expect("do")
        body = self.body(("done",))
        self.expect("done")
        return body

    def while_(self, until: bool = False) -> While:
        condition = self.body(("do",))
        return While(condition, self.do_body(), until)

    def case(self) -> Case:
        word, branches = self.next().text, []
        self.skip_lines()
        self.expect("in")
        self.skip_lines()
        while not self.takes("word", "esac"):
            self.takes("operator", "(")
            patterns = [self.next().text]
            while self.takes("operator", "|"):
                patterns.append(self.next().text)
            self.expect(")")
            branches.append((patterns, self.body(("esac",))))
            self.takes("operator", *ENDS_OF_CASE)
            self.skip_lines()
        return Case(word, branches)

    def function(self) -> Function:
        name = self.next().text
        if self.takes("operator", "("):
            self.expect(")")
        self.skip_lines()
        return Function(name, [self.command()])


COMPOUND: Mapping[str, Callable[[_TreeParser], Any]] = {
    "if": _TreeParser.if_,
    "for": _TreeParser.for_,
    "select": _TreeParser.for_,
    "while": _TreeParser.while_,
    "until": lambda parser: parser.while_(until=True),
    "case": _TreeParser.case,
    "function": _TreeParser.function,
    "{": lambda parser: parser.group("}", subshell=False),
}
