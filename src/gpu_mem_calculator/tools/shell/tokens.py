"""Splits a shell script into words and operators. Words keep their quotes and expansions."""

from __future__ import annotations

import re

from msgspec import Struct

from ...runfile.text.errors import InputError
from .bounds import WORK_OF_SPECIAL, WORK_OF_TOKEN, Work

PLAIN = re.compile(r"[^\s;&|<>()\"'\\$`{}#]+")
# What a reader shall write: <num_gpus>, <your model>. A file behind <, with another behind >, is
# rarer.
PLACEHOLDER = re.compile(r"<[A-Za-z](?:[\w.-]*|[\w-]*(?: [A-Za-z][\w-]*)+)>(?![\w.$\"'<>&|])")
OPERATOR = re.compile(
    r"\d+(?=[<>](?!\())|&>>|<<<|<<-|;;&|&&|\|\||;;|;&|<<|>>|<&|>&|<>|>\||&>|\|&|[;&|()<>]"
)
# A path of Windows without quotes: C:\models\x, \\server\x, .\x, a\b\x; not a\_b of Markdown.
WINDOWS_PATH = re.compile(
    r"(?<![^\s=;&|(])"
    r"(?:[A-Za-z]:|\.{1,2}|\\|[\w.-]+(?=\\[A-Za-z0-9][\w.-]*\\[A-Za-z0-9.]))"
    r"(?:\\[\w.][^\s\\\"'|;&<>$`]*)+(?:\\(?=[ \t]+-|\Z))?(?![^\s;&|)])"
)
SPACE = re.compile(r"(?:[ \t\r]|\\\r?\n)+")
ARRAY = re.compile(r"[A-Za-z_]\w*(\[[^\]]*\])?\+?=")
DELIMITER = re.compile(r"[ \t]*((?:[^\s;&|<>()'\"\\]|'[^']*'|\"[^\"]*\"|\\.)+)")
MOST_ARITHMETIC = 200  # characters of `((...))`
ENDS = frozenset(" \t\r\n;&|<>()")
NAMES = {'"': "a double quote", "(": "a parenthesis", "`": "a backtick", "{": "a brace"}


class ShellToken(Struct):
    """A word, an operator, an arithmetic command `((...))`, a newline, or a here-document.

    `body` is the text of a here-document; `quoted` says that nothing in it is expanded.
    """

    kind: str
    text: str
    body: str = ""
    quoted: bool = False
    strips: bool = False  # of <<-: tabs in front of each line are removed


def with_windows_paths(text: str) -> str:
    """A text for a shell that leaves the paths of Windows as they are."""
    return WINDOWS_PATH.sub(lambda found: found[0].replace("\\", "\\\\"), text)


def tokens_of(text: str, work: Work) -> list[ShellToken]:
    """The tokens of a script."""
    found: list[ShellToken] = []
    waiting: list[ShellToken] = []  # here-documents that begin at the next line
    at = 0
    while at < len(text):
        before = at
        space = SPACE.match(text, at)
        if space:
            at = space.end()
            continue
        char = text[at]
        if char == "\n":
            found.append(ShellToken("newline", "\n"))
            at = _read_documents(text, at + 1, waiting)
        elif char == "#":
            end = text.find("\n", at)
            at = end if end >= 0 else len(text)
        else:
            at = _read_token(text, at, found, waiting, work)
        work.spend(WORK_OF_TOKEN + at - before)
    return found


def _read_token(
    text: str, at: int, found: list[ShellToken], waiting: list[ShellToken], work: Work
) -> int:
    if text.startswith("((", at):
        inner = _arithmetic(text[at : at + MOST_ARITHMETIC])
        work.spend(MOST_ARITHMETIC * WORK_OF_SPECIAL)
        if inner is not None:
            found.append(ShellToken("arithmetic", inner))
            return at + len(inner) + 4
    operator = None if PLACEHOLDER.match(text, at) else OPERATOR.match(text, at)
    if operator and not text.startswith(("<(", ">("), at):
        if operator[0] in ("<<", "<<-"):
            return _read_delimiter(text, operator, found, waiting)
        if not operator[0].isdigit():  # the number of a descriptor, as in 2>&1, is left out
            found.append(ShellToken("operator", operator[0]))
        return operator.end()
    end = word_end(text, at)
    found.append(ShellToken("word", text[at:end]))
    return end


def _arithmetic(text: str) -> str | None:
    """What is in `((...))`; None for two parentheses that are closed one by one."""
    try:
        end = construct_end(text, 0)
    except InputError:
        return None
    return text[2 : end - 2] if text[end - 2 : end] == "))" else None


def _read_delimiter(
    text: str, operator: re.Match[str], found: list[ShellToken], waiting: list[ShellToken]
) -> int:
    word = DELIMITER.match(text, operator.end())
    if word is None:
        raise InputError("the shell script has << without a word after it")
    token = ShellToken(
        "heredoc",
        re.sub(r"['\"\\]", "", word[1]),
        quoted=any(char in word[1] for char in "'\"\\"),
        strips=operator[0] == "<<-",
    )
    found.append(token)
    waiting.append(token)
    return word.end()


def _read_documents(text: str, at: int, waiting: list[ShellToken]) -> int:
    """Reads the here-documents that begin at a line; where the text goes on after them."""
    for token in waiting:
        tabs = r"\t*" if token.strips else ""
        end = re.compile(rf"^{tabs}{re.escape(token.text)}\r?$", re.MULTILINE).search(text, at)
        stop, after = (end.start(), end.end() + 1) if end else (len(text), len(text))
        token.body = text[at:stop]
        if token.strips:
            token.body = re.sub(r"^\t+", "", token.body, flags=re.MULTILINE)
        at = after
    waiting.clear()
    return min(at, len(text))


def word_end(text: str, start: int) -> int:
    """Where the word that begins at `start` ends; the values of an array belong to its word."""
    stack: list[str] = []
    at = start
    while at < len(text):
        plain = PLAIN.match(text, at) or (None if stack else PLACEHOLDER.match(text, at))
        if plain:
            at = plain.end()
        elif stack or at == start or text[at] not in ENDS:
            at = _step(text, at, stack)
        elif text[at] == "(" and ARRAY.fullmatch(text, start, at):
            stack.append("(")
            at += 1
        else:
            return at
    _check_closed(text, start, stack)
    return len(text)


def construct_end(text: str, start: int) -> int:
    """Where the quote, the expansion or the parenthesis that begins at `start` ends."""
    stack: list[str] = []  # what is open: " ( { `, and { inside double quotes as {"
    at = _step(text, start, stack)
    while stack and at < len(text):
        plain = PLAIN.match(text, at)
        at = plain.end() if plain else _step(text, at, stack)
    _check_closed(text, start, stack)
    return min(at, len(text))


def _check_closed(text: str, start: int, stack: list[str]) -> None:
    if stack:
        raise _never_closed(text, start, NAMES[stack[0]])


def _never_closed(text: str, at: int, what: str) -> InputError:
    line = text.count("\n", 0, at) + 1
    return InputError(f"line {line} of the shell script opens {what} that is never closed")


def _step(text: str, at: int, stack: list[str]) -> int:
    """Reads one special character; what it opens or closes is in the stack."""
    char, top = text[at], stack[-1] if stack else ""
    in_quotes = top.endswith('"')
    if char == "\\":
        return at + 2
    if char == "'" and not in_quotes:
        end = text.find("'", at + 1)
        if end < 0:
            raise _never_closed(text, at, "a quote")
        return end + 1
    if char in '"`':
        if top == char:
            stack.pop()
        else:
            stack.append(char)
    elif text.startswith(("$(", "<(", ">("), at) and not (char != "$" and in_quotes):
        stack.append("(")
        return at + 2
    elif text.startswith("${", at):
        stack.append('{"' if in_quotes else "{")
        return at + (3 if text.startswith("${#", at) else 2)
    elif char == "(" and (top == "(" or not stack):
        stack.append("(")
    elif (char == ")" and top == "(") or (char == "}" and top.startswith("{")):
        stack.pop()
    elif char == "#" and top == "(" and text[at - 1].isspace():
        end = text.find("\n", at)
        return end if end >= 0 else len(text)
    return at + 1
