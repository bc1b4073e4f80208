"""The citations of framework files in our source: path, lines, names, and which framework."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from gpu_mem_calculator.ledger.frameworks import BY_NAME, Framework

SOURCE = Path(__file__).parents[2] / "src" / "gpu_mem_calculator"
_NAMES = "|".join(
    re.escape(name).replace(r"\ ", r"\s+") for name in sorted(BY_NAME, key=len, reverse=True)
)
_VERSION = r"v?\d+\.\d+(?:\.\d+)*(?:\.?(?:rc|post)\d+)?(?:\+\w+)?|b\d{4,6}\b|[0-9a-f]{7,40}\b"
# A framework, and the version that follows it, if one does.
MENTION = re.compile(rf"(?<![\w.-])({_NAMES})(?:'s)?(?:\s+(?:at\s+)?({_VERSION}))?(?![\w])", re.I)
_LINES = r"\d+(?:-\d+)?"
FILE = re.compile(rf"(?<![\w/.])([A-Za-z_][\w./-]*\.py)\b(?::({_LINES}(?:,\s*{_LINES})*))?")
MORE_LINES = re.compile(rf"(?<=[\s(]):({_LINES})\b")
WORD = re.compile(r"[A-Za-z_][\w.]*\w")


Candidate = tuple[Framework, str]


class Citation(NamedTuple):
    """A file of a framework that our source cites.

    - source: our file; path: the cited one
    - lines: first and last of each range; words: names that follow the path
    - candidates: frameworks that it can be of, the likeliest first, each with the version that
      is named with it, if one is
    """

    source: str
    path: str
    lines: tuple[tuple[int, int], ...]
    words: tuple[str, ...]
    candidates: tuple[Candidate, ...]

    @property
    def text(self) -> str:
        """The path with its lines."""
        ranges = [str(a) if a == b else f"{a}-{b}" for a, b in self.lines]
        return f"{self.path}:{','.join(ranges)}" if ranges else self.path


def files(source: Path = SOURCE) -> list[Path]:
    """Our Python files."""
    return sorted(source.rglob("*.py"))


def mentions(text: str) -> Iterator[tuple[int, Framework, str]]:
    """Position, framework and version (or nothing) of each mention in a text."""
    for match in MENTION.finditer(text):
        yield match.start(), BY_NAME[" ".join(match[1].lower().split())], match[2] or ""


def unread(text: str) -> list[str]:
    """Each framework with a version that a text names and that the table does not have."""
    named = ((row, version) for _, row, version in mentions(text) if version)
    return sorted({f"{row.names[0]} {v}" for row, v in named if not row.covers(v)})


def citations(path: Path, source: Path = SOURCE) -> Iterator[Citation]:
    """Every citation of a framework's Python file in one of our files."""
    blocks = list(_blocks(path))
    around = [*_named("\n".join(blocks)), *_of_folder(path.parent)]
    for block in blocks:
        matches = list(FILE.finditer(block))
        for match, following in zip(matches, [*matches, None][1:], strict=True):
            tail = block[match.end() : following.start() if following else None]
            tail = re.split(r"\.\s|;", tail, maxsplit=1)[0]
            near = _nearest(block, match.start())
            yield Citation(
                str(path.relative_to(source)),
                match[1],
                tuple(_ranges(match[2] or "")) + tuple(_ranges(",".join(MORE_LINES.findall(tail)))),
                tuple(word for word in WORD.findall(tail) if _is_code(word)),
                _once([*near, *around]),
            )


def _ranges(text: str) -> Iterator[tuple[int, int]]:
    """First and last line of each range in `941, 1160-1180`."""
    for part in filter(None, re.split(r",\s*", text)):
        first, _, last = part.partition("-")
        yield int(first), int(last or first)


def _is_code(word: str) -> bool:
    """Whether a word can only be a name in code: it has an underscore, a dot or inner capitals."""
    return "_" in word or "." in word or any(letter.isupper() for letter in word[1:])


def _once(candidates: list[Candidate]) -> tuple[Candidate, ...]:
    """Each framework once, at its first place, with the first version that is named with it."""
    versions = {row: version for row, version in reversed(candidates) if version}
    return tuple(
        (row, versions.get(row, "")) for row in dict.fromkeys(row for row, _ in candidates)
    )


def _nearest(block: str, position: int) -> list[Candidate]:
    """Frameworks of a text: those before a position, those with a version, the nearest first."""
    rows = [
        ((at > position, not version, abs(position - at)), (row, version))
        for at, row, version in mentions(block)
    ]
    return [candidate for _, candidate in sorted(rows, key=lambda row: row[0])]


def _named(text: str) -> list[Candidate]:
    """Frameworks that a text names, those with a version first."""
    rows = [(row, version) for _, row, version in mentions(text)]
    return sorted(rows, key=lambda candidate: not candidate[1])


@cache
def _of_folder(folder: Path) -> list[Candidate]:
    """Frameworks that the top of a folder names."""
    tops = [folder / "engine.py", folder / "__init__.py"]
    return [row for top in tops if top.exists() for row in _named(top.read_text(encoding="utf-8"))]


def _blocks(path: Path) -> Iterator[str]:
    """Every string and every comment of a file that cites one, each as one line."""
    text = path.read_text(encoding="utf-8")
    if not FILE.search(text):
        return
    tree = ast.parse(text)
    constants = {**_constants(path.parent), **_strings(tree)}
    nodes: list[ast.AST] = [tree]
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield " ".join(_filled(node, constants).split())
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield " ".join(node.value.split())
        else:
            nodes += ast.iter_child_nodes(node)
    yield from _comments(text)


def _comments(text: str) -> Iterator[str]:
    """Comments, those on successive lines joined."""
    joined, last = "", -1
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            words = token.string.lstrip("# ")
            if token.start[0] == last + 1 and token.line.lstrip().startswith("#"):
                joined += f" {words}"
            else:
                yield joined
                joined = words
            last = token.start[0]
    yield joined


def _filled(node: ast.JoinedStr, constants: Mapping[str, str]) -> str:
    """An f-string with the constants that it names put in."""
    parts = []
    for part in node.values:
        if isinstance(part, ast.Constant):
            parts.append(str(part.value))
        elif isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Name):
            parts.append(constants.get(part.value.id, ""))
    return "".join(parts)


def _strings(tree: ast.Module) -> dict[str, str]:
    """The constants of a module that are plain texts."""
    return {
        statement.targets[0].id: statement.value.value
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    }


@cache
def _constants(folder: Path) -> dict[str, str]:
    """The plain texts of all modules of a folder, by constant."""
    texts = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.py"))]
    return {name: text for tree in texts for name, text in _strings(tree).items()}
