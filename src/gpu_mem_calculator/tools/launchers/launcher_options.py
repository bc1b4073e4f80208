"""The options of a launcher, which stand between its name and the program that it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct

from ...runfile.text.errors import InputError, nearest
from ..translation.arguments import argument_data

FOLDER = Path(__file__).parent


class LauncherSyntax(Struct, frozen=True, kw_only=True):
    """How a launcher's options are written.

    - `values` have a value, `two` have two, `flags` have none; `short` are their short forms
    - `prefix`: the beginning of a name is enough; `open`: an unknown option has a value
    """

    values: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    two: tuple[str, ...] = ()
    short: Mapping[str, str] = {}
    prefix: bool = False
    open: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The name of every option."""
        return (*self.values, *self.flags, *self.two)


class LauncherOptions(Struct, frozen=True):
    """The options of a launcher by name, each with the values that were given, and the words of
    the program behind them.
    """

    given: Mapping[str, tuple[str, ...]]
    rest: tuple[str, ...]

    def last(self, *names: str) -> str | None:
        """The value that was given last under one of the names."""
        found = [self.given[name][-1] for name in names if name in self.given]
        return found[-1] if found else None

    def number(self, *names: str) -> int | None:
        """The same as a whole number; None where it is another word, such as `auto`."""
        value = self.last(*names)
        return int(value) if value is not None and value.isdecimal() and len(value) < 9 else None

    def pairs(self, name: str) -> dict[str, str]:
        """The variables that an option sets each time, as NAME=VALUE."""
        return dict(one.split("=", 1) for one in self.given.get(name, ()) if "=" in one)


@cache
def syntaxes() -> Mapping[str, LauncherSyntax]:
    """The syntax of each launcher, by its name in the table."""
    return msgspec.convert(argument_data("options", FOLDER), dict[str, LauncherSyntax])


def split_options(launcher: str, words: Sequence[str]) -> LauncherOptions:
    """The options in front of a program; `words` begin behind the launcher's name."""
    syntax, rest = syntaxes()[launcher], list(words)
    given: dict[str, list[str]] = {}
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        name, sign, value = _named(launcher, syntax, word)
        values = [value] if sign else []
        count = 0 if name in syntax.flags else 2 if name in syntax.two else 1
        while len(values) < count:
            if not rest:
                raise InputError(f"{launcher}: {word} needs a value")
            values.append(rest.pop(0))
        given.setdefault(name, []).append(" ".join(values) if count else value or "true")
    return LauncherOptions({name: tuple(values) for name, values in given.items()}, tuple(rest))


def _named(launcher: str, syntax: LauncherSyntax, word: str) -> tuple[str, str, str]:
    """The name of an option, `=` where its value is in the same word, and that value."""
    written, sign, value = word.lstrip("-").partition("=")
    name = written.replace("-", "_")
    if not word.startswith("--") and written[0] in syntax.short:
        known = syntax.short[written[0]]
        if len(written) == 1:
            return known, sign, value
        if written not in syntax.names:  # -n8, and flags such as -it
            attached = written[1:] + sign + value
            return known, "" if known in syntax.flags else "=", attached
    if name in syntax.names:
        return name, sign, value
    if syntax.prefix:
        longer = [one for one in syntax.names if one.startswith(name)]
        if len(longer) == 1:
            return longer[0], sign, value
    if not syntax.open:
        hint = nearest(name, syntax.names) or "; leave it out"
        raise InputError(f"{word.partition('=')[0]} is not an option of {launcher}{hint}")
    if not word.startswith("--") and len(written) > 1 and not sign and launcher != "mpirun":
        return name, "=", value  # a short option with its value, such as -t10
    return name, sign, value
