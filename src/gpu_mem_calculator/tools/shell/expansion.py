"""Expands quotes and variables in words, with the defaults, prefixes, replacements and parts of
`${name...}`. Nothing is run: `$(...)` is a value that is not known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fnmatch import translate

from .arithmetic import evaluate
from .bounds import MOST_VALUE, WORK_OF_SPECIAL, WORK_OF_TOKEN, Work, check_depth, checked_value
from .tokens import construct_end
from .variables import UNKNOWN, Variables, is_known

PARAMETER = re.compile(
    r"(?P<length>#(?=[\w@*]))?(?P<indirect>!(?=\w))?(?P<name>\w+|[@*#?$!-])"
    r"(?:\[(?P<index>[^\]]*)\])?(?P<rest>.*)",
    re.DOTALL,
)
DEFAULT = re.compile(r"(:?)([-=+?])(.*)", re.DOTALL)
MOST_MATCHED = 1000  # characters of a value that a pattern is tried on
CASES: Mapping[str, Callable[[str], str]] = {
    "^^": str.upper,
    ",,": str.lower,
    "^": lambda one: one[:1].upper() + one[1:],
}
PLAIN = re.compile(r"[^\\'\"$`]+")
PLAIN_QUOTED = re.compile(r"[^\\$`\"]+")
SIMPLE_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
OWN_FOLDER = re.compile(r"dirname.*(\$0|\$\{0\}|BASH_SOURCE)", re.DOTALL)
PATTERN_WORK = 20  # a pattern is tried at each character of a value
ESCAPES = {"n": "\n", "t": "\t"}
Elements = list[str] | None


def changed(value: str, rest: str) -> str | None:
    """A value after `%`, `#`, `/`, `^`, `,` or `:`; None where the result is not known."""
    if not rest or rest.startswith("@"):
        return value
    if not is_known(value) or not is_known(rest) or len(value) > MOST_MATCHED:
        return None
    for operator in ("%%", "%", "##", "#"):
        if rest.startswith(operator):
            return _without(value, operator, rest[len(operator) :])
    if rest[0] == "/":
        return _replaced(value, rest[1:])
    if rest[0] == ":":
        return _part(value, rest[1:])
    return CASES[rest](value) if rest in CASES else None


def _pattern(text: str) -> re.Pattern[str] | None:
    try:
        return re.compile(translate(text.replace("\\", "").strip("\"'")))
    except (re.error, OverflowError):
        return None


def _without(value: str, operator: str, text: str) -> str | None:
    """The value without the shortest or longest part, at its start or end, that matches."""
    pattern = _pattern(text)
    if pattern is None or text.count("*") > 4:
        return None
    places = range(len(value) + 1)
    if operator[0] == "#":
        cuts = places if operator == "#" else reversed(places)
        return next((value[cut:] for cut in cuts if pattern.match(value[:cut])), value)
    cuts = reversed(places) if operator == "%" else places
    return next((value[:cut] for cut in cuts if pattern.match(value[cut:])), value)


def _replaced(value: str, text: str) -> str | None:
    everywhere = text.startswith("/")
    old, _, new = text.removeprefix("/").replace("\\/", "\0").partition("/")
    old, new = (one.replace("\0", "/").strip("\"'") for one in (old, new))
    if any(char in old for char in "*?[") or not old:
        return None
    return value.replace(old, new) if everywhere else value.replace(old, new, 1)


def _part(value: str, text: str) -> str | None:
    match = re.fullmatch(r"\s*(-?\d{1,6})\s*(?::\s*(-?\d{1,6})\s*)?", text)
    if match is None:
        return None
    start = int(match[1])
    start = max(len(value) + start, 0) if start < 0 else start
    length = len(value) if match[2] is None else int(match[2])
    return value[start : length if length < 0 else start + length]


class Fields:
    """The words that one word expands to."""

    def __init__(self, *, splits: bool) -> None:
        self.words: list[str] = []
        self.parts: list[str] | None = None  # of the current word
        self.splits = splits
        self.size = 0

    def add(self, text: str) -> None:
        """Append to the current word."""
        self.parts = [] if self.parts is None else self.parts
        self.parts.append(text)
        self.size += len(text)
        if self.size > MOST_VALUE:
            checked_value("".join(self.words) + "".join(self.parts))

    def add_split(self, text: str) -> None:
        """Append a value that is not in quotes: white space ends words."""
        if not self.splits:
            self.add(text)
            return
        if text[:1].isspace():
            self.end_word()
        for place, part in enumerate(text.split()):
            if place:
                self.end_word()
            self.add(part)
        if text[-1:].isspace():
            self.end_word()

    def add_elements(self, elements: list[str]) -> None:
        """Append the elements of an array in quotes: each is a word."""
        for place, element in enumerate(elements):
            if place and self.splits:
                self.end_word()
            elif place:
                self.add(" ")
            self.add(element)

    def end_word(self) -> None:
        """The next text begins another word."""
        if self.parts is not None:
            self.words.append("".join(self.parts))
            self.parts = None


class Expansion:
    """Expands words with the variables of a script.

    - `empty_if_unset`: a variable that is not set is empty, as in tests; else its text remains
    """

    def __init__(self, variables: Variables, work: Work, folder: str = ".") -> None:
        self.variables, self.work, self.folder = variables, work, folder
        self.empty_if_unset = False
        self.depth = 0

    def words(self, raw: str) -> list[str]:
        """The words that a word of the script becomes."""
        fields = Fields(splits=True)
        self._expand(raw, fields, quoted=False)
        fields.end_word()
        return fields.words

    def text(self, raw: str, *, quoted: bool = False) -> str:
        """A word as one text: in an assignment, a test or, quoted, a here-document."""
        fields = Fields(splits=False)
        self._expand(raw, fields, quoted=quoted)
        fields.end_word()
        return "".join(fields.words)

    def number(self, text: str) -> int | None:
        """The value of an arithmetic expression; None where it is not known."""
        return evaluate(self.text(text, quoted=True), self.variables.get)

    def _expand(self, raw: str, fields: Fields, *, quoted: bool) -> None:
        self.depth += 1
        check_depth(self.depth)
        self.work.spend(len(raw) + WORK_OF_TOKEN)
        plain, at = PLAIN_QUOTED if quoted else PLAIN, 0
        while at < len(raw):
            match = plain.match(raw, at)
            if match:
                fields.add(match[0])
                at = match.end()
            else:
                at = self._special(raw, at, fields, quoted=quoted)
        self.depth -= 1

    def _special(self, raw: str, at: int, fields: Fields, *, quoted: bool) -> int:
        """Expands what begins with a quote, a backslash, a dollar or a backtick."""
        char = raw[at]
        if char == "\\":
            fields.add(_escaped(raw[at : at + 2], quoted=quoted))
            return at + 2
        if char == "'":
            end = raw.find("'", at + 1)
            end = end if end >= 0 else len(raw)
            fields.add(raw[at + 1 : end])
            return end + 1
        if char == '"':
            if quoted:  # in a here-document
                fields.add(char)
                return at + 1
            end = self._end(raw, at)
            self._expand_quoted(raw[at + 1 : end - 1], fields)
            return end
        if char == "`":
            end = self._end(raw, at)
            fields.add(self._substitution(raw[at + 1 : end - 1]))
            return end
        return self._dollar(raw, at, fields, quoted=quoted)

    def _end(self, raw: str, at: int) -> int:
        end = construct_end(raw, at)
        self.work.spend((end - at) * WORK_OF_SPECIAL)
        return end

    def _expand_quoted(self, inner: str, fields: Fields) -> None:
        if not re.fullmatch(r"\$(@|\{\w+\[@\].*\})", inner, re.DOTALL):
            fields.add("")  # quotes around nothing are a word; those around no elements are not
        self._expand(inner, fields, quoted=True)

    def _dollar(self, raw: str, at: int, fields: Fields, *, quoted: bool) -> int:
        if raw.startswith(("$(", "${"), at):
            end = self._end(raw, at)
            inner = raw[at + 2 : end - 1]
            if raw[at + 1] == "{":
                self._parameter(inner, fields, quoted=quoted)
            elif inner.startswith("(") and inner.endswith(")"):
                number = self.number(inner[1:-1])
                squeezed = re.sub(r"\s", "", raw[at:end])
                fields.add(squeezed if number is None else str(number))
            else:
                fields.add(self._substitution(inner))
            return end
        if raw.startswith("$'", at) and not quoted:
            end = raw.find("'", at + 2)
            end = end if end >= 0 else len(raw)
            fields.add(re.sub(r"\\(.)", lambda one: ESCAPES.get(one[1], one[1]), raw[at + 2 : end]))
            return end + 1
        name = SIMPLE_NAME.match(raw, at + 1)
        if name is None:
            fields.add("$")
            return at + 1
        self._parameter(name[0], fields, quoted=quoted)
        return name.end()

    def _substitution(self, inner: str) -> str:
        """`$(...)` is never run; its text, without white space, stands for its value. `expr` is
        arithmetic.
        """
        if OWN_FOLDER.search(inner):
            return self.folder
        if inner.strip() == "pwd":
            return "."
        words = inner.split()
        if words[:1] == ["expr"]:
            number = self.number(" ".join(words[1:]).replace("\\*", "*"))
            if number is not None:
                return str(number)
        program = words[0].rstrip("…") if words else ""
        return f"{UNKNOWN}({program}{'…' if inner.strip() != program else ''})"

    def _parameter(self, inner: str, fields: Fields, *, quoted: bool) -> None:
        match = PARAMETER.fullmatch(inner)
        if match is None:
            fields.add(_braced(inner))
            return
        name, index = match["name"], match["index"]
        if match["indirect"]:
            name = self.variables.get(name) or name
        everything = index in ("@", "*") or name in ("@", "*")
        value = None if everything else self._value(name, index)
        elements = None if value is None else [value]
        if everything:
            elements = self.variables.elements(name)
        if match["length"] and elements is not None:
            fields.add(str(len(elements) if everything else len(elements[0])))
            return
        elements = self._with_operator(name, match, elements, fields, quoted=quoted)
        if elements is None:
            return
        if quoted and everything and "*" not in (index, name):
            fields.add_elements(elements)
        elif quoted:
            fields.add(" ".join(elements))
        else:
            for place, element in enumerate(elements):
                if place:
                    fields.add_split(" ")
                fields.add_split(element)

    def _value(self, name: str, index: str | None) -> str | None:
        if name == "#":
            return str(len(self.variables.arguments)) if self.variables.arguments_known else None
        return self.variables.get(name, index)

    def _with_operator(
        self, name: str, match: re.Match[str], elements: Elements, fields: Fields, *, quoted: bool
    ) -> Elements:
        """The elements after an operator; None where the result is in the fields already."""
        inner, rest = match.string, match["rest"]
        default = DEFAULT.fullmatch(rest)
        if default:
            missing = elements is None or (bool(default[1]) and not "".join(elements))
            if default[2] == "+" and missing:
                return []
            if default[2] == "+" or (missing and default[2] != "?"):
                self._use_default(name, default, fields, quoted=quoted)
                return None
            rest = ""
        if elements is None:
            return self._unset(name, inner)
        rest = self.text(rest, quoted=True) if rest else ""
        self.work.spend(sum(map(len, elements)) * (PATTERN_WORK if rest else 1))
        results = [changed(element, rest) for element in elements]
        return [_braced(inner) if result is None else result for result in results]

    def _use_default(
        self, name: str, default: re.Match[str], fields: Fields, *, quoted: bool
    ) -> None:
        if default[2] == "=":
            self.variables.set(name, self.text(default[3], quoted=quoted))
        if quoted or any(char in default[3] for char in "\"'"):
            self._expand(default[3], fields, quoted=quoted)
        else:
            fields.add_split(self.text(default[3]))

    def _unset(self, name: str, inner: str) -> list[str]:
        if name.isdigit() or name == "#":
            if self.variables.asks and name.strip("#0"):
                self.variables.asked.add(int(name))
            return [f"${name}"]
        if self.empty_if_unset or "[@]" in inner or "[*]" in inner:
            return []
        return [f"${inner}" if inner == name else _braced(inner)]


def _braced(inner: str) -> str:
    """What stands for a parameter whose value is not known."""
    return f"${{{''.join(inner.split())}}}"


def _escaped(pair: str, *, quoted: bool) -> str:
    if pair == "\\\n":
        return ""
    if quoted and pair[1:] not in ('"', "$", "`", "\\"):
        return pair
    return pair[1:]
