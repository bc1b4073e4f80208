"""What a shell script consists of: simple commands, and commands that contain others."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field


class Redirect(Struct):
    """A redirection: its operator, its file, or the text of a here-document."""

    operator: str
    target: str = ""
    body: str = ""
    quoted: bool = False


class Simple(Struct):
    """Variables, a command and its arguments, as they are written."""

    words: list[str] = field(default_factory=list)
    redirects: list[Redirect] = field(default_factory=list)


class Arithmetic(Struct):
    """`((...))`."""

    text: str


class Background(Struct):
    """`command &`: the script goes on while it runs."""

    body: Any


class Not(Struct):
    """`! command`."""

    body: Any


class Joined(Struct):
    """Commands joined by `&&`, `||` or `|`: the first, then each with its operator."""

    first: Any
    rest: list[tuple[str, Any]]


class If(Struct):
    """Conditions with their commands, and those of else."""

    branches: list[tuple[list[Any], list[Any]]]
    otherwise: list[Any]


class For(Struct):
    """`for name in words`; `words` is None for the arguments of the script."""

    name: str
    words: list[str] | None
    body: list[Any]


class While(Struct):
    """`while` and, with `until`, its opposite; also `for ((...))`."""

    condition: list[Any]
    body: list[Any]
    until: bool = False


class Case(Struct):
    """A word, and patterns with their commands."""

    word: str
    branches: list[tuple[list[str], list[Any]]]


class ShellGroup(Struct):
    """`{ ... }`, or `( ... )`, whose variables are lost at its end."""

    body: list[Any]
    subshell: bool
    redirects: list[Redirect] = field(default_factory=list)


class Function(Struct):
    """A function's name and its commands."""

    name: str
    body: list[Any]
