"""Calls of functions that no table knows: what they get and what their names say."""

from __future__ import annotations

import re
from typing import Any

from ..translation.arguments import tables
from .definitions import ScriptWorld
from .record import FREE, UNCLEAR
from .rows import account, is_plain_package, limit, row
from .values import TRACKED, UNKNOWN, Arguments, Imported, ScriptFunction, Thing

TABLES = tables(__file__)
LENGTHS = tuple(TABLES["lengths"])
FREE_TORCH = re.compile(rf"torch\.({'|'.join(TABLES['free_torch'])})")
# Functions of files that are not at hand, whose names say that they read and report.
REPORTS = re.compile("|".join(TABLES["reports"]))
# Names of code that is not at hand which say that it makes or changes something on the GPU.
MAKES = re.compile("|".join(TABLES["makes"]), re.IGNORECASE)
OPTIONS = ("namespace", "arguments")
KNOWN = ("transformers", "peft", "trl", "accelerate", "torch", "builtins", "?")


def note_lengths(world: ScriptWorld, arguments: Arguments) -> None:
    """Note the tokens to which a call cuts sequences."""
    for name in LENGTHS:
        value = arguments.named.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**9:
            world.note_length(arguments.lines.get(name, arguments.line), value)


def look_through(world: ScriptWorld, arguments: Arguments) -> None:
    """Follow functions that are handed to data, such as that of `map`, once each."""
    for one in arguments.every():
        if isinstance(one, ScriptFunction):
            world.follow(one, Arguments(is_open=False))


def other_call(world: ScriptWorld, called: Any, arguments: Arguments) -> Any:
    """A call of something that is not in a table: it matters where it gets a model or a trainer,
    or where it is called for what it changes elsewhere.
    """
    path = called.path if isinstance(called, Imported) else ""
    note_lengths(world, arguments)
    touched = arguments.things(*TRACKED)
    if touched:
        return _touching(world, path, touched, arguments)
    outputs = arguments.things("output")
    if outputs and (not path or called.package not in ("?", "builtins")):
        why = "a loss of one's own may keep other tensors than the model's"
        # torch's function writes one tensor, and keeps at most one more for backward, in fp32.
        of_torch = path.startswith("torch.")
        limit(world, arguments, why, adds="8*logits" if of_torch else True, saves=not of_torch)
        outputs[0].values["own"] = not of_torch
        return outputs[0]
    elsewhere = path and not is_plain_package(called.package) and called.package not in KNOWN
    if elsewhere and arguments.things(*OPTIONS):
        world.found.facts["handed on"] = arguments
    look_through(world, arguments)
    if elsewhere:
        effect, why = FREE, "it gets no object that takes memory"
        if MAKES.search(called.last):
            effect, why = UNCLEAR, "not understood: its code is not at hand"
        world.seen(arguments.line, arguments.text, effect, why, more=arguments.more)
    return UNKNOWN


def _touching(world: ScriptWorld, path: str, touched: list[Thing], arguments: Arguments) -> Any:
    """A call that gets objects which take memory; it may return the model that it gets."""
    name = path.rpartition(".")[2]
    known = row("function", name)
    if known is None and REPORTS.fullmatch(name):
        world.seen(arguments.line, arguments.text, FREE, "its name says that it reports")
        return UNKNOWN
    if known is None and (FREE_TORCH.fullmatch(path) or is_plain_package(path.partition(".")[0])):
        world.seen(arguments.line, arguments.text, FREE, "it reads the object")
    else:
        account(world, arguments, known)
    alone = known is None and len(touched) == 1 and touched[0].kind in ("model", "part")
    return touched[0] if alone else UNKNOWN


def changes_elsewhere(called: Any) -> bool:
    """Whether a call without a result could change what libraries do: one of a package that is
    not known, such as a function that replaces a model's attention.
    """
    if not isinstance(called, Imported):
        return False
    package = called.package
    if REPORTS.fullmatch(called.last):
        return False
    if package in ("transformers", "peft", "trl", "accelerate", "builtins", ""):
        return "patch" in called.last or "replace" in called.last
    return not is_plain_package(package) and not FREE_TORCH.fullmatch(called.path)
