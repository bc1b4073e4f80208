"""What a script was seen to do: every line that was accounted for, and the objects it made."""

from __future__ import annotations

import ast
from typing import Any

from msgspec import Struct, field

from .values import ScriptClass, ScriptFunction, Thing

HONOURED, FREE, LIMIT, UNCLEAR = "memory", "free", "limit", "unclear"


class Line(Struct):
    """A call or an assignment.

    - `effect`: memory (honoured), free, limit (not modelled), or unclear (not understood)
    - `adds`, `saves`: whether a limit can take more, or less, than estimated; a part of the
      estimate bounds it
    - `more`: further lines of the same call
    """

    line: int
    what: str
    effect: str
    why: str = ""
    adds: bool | str = True
    saves: bool | str = True
    more: tuple[int, ...] = ()


class ScriptRecord(Struct, kw_only=True):
    """All that was found in a script.

    - `things`: models, trainers and so on, in the order in which they were made
    - `conditions`: branches whose condition is not known, and that change memory, by line
    - `lengths`: tokens to which calls truncate sequences, by line; `named_lengths`: which names say
      so; `unused_lengths`: in functions that nothing calls
    - `options`: options that the script declares, with their defaults
    - `is_cut`: whether the script was too long to be followed to its end
    - `tree`: the script's syntax tree
    """

    imports: set[str] = field(default_factory=set)
    lines: list[Line] = field(default_factory=list)
    things: list[Thing] = field(default_factory=list)
    functions: list[ScriptFunction] = field(default_factory=list)
    classes: list[ScriptClass] = field(default_factory=list)
    conditions: dict[int, str] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    named_lengths: dict[int, int] = field(default_factory=dict)
    unused_lengths: dict[int, int] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)
    is_cut: bool = False
    tree: ast.Module = field(default_factory=lambda: ast.Module(body=[], type_ignores=[]))

    def of_kind(self, kind: str) -> list[Thing]:
        """The things of one kind."""
        return [one for one in self.things if one.kind == kind]
