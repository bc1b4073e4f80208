"""The arguments that a script of a trainer may have, and how they are written."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from msgspec import Struct

from ..reading.options import OptionSyntax, option_syntax
from ..translation.arguments import FOLDER, ArgumentTable, argument_data, argument_table
from ..translation.tools import TOOLS
from .trainers import TRAINER, TRL

OWN = Path(__file__).parent
# Tables beside the trainer's own, the first of them wins.
BESIDE = ("script", "recipes", "older")
BESIDE_TRAINER = ("examples", "script", "recipes", "older")


class ScriptArguments(Struct, frozen=True, kw_only=True):
    """The arguments of a script, those of its trainer among them, and how they are written."""

    trainer: ArgumentTable
    table: ArgumentTable
    syntax: OptionSyntax


NO_ARGUMENTS = ScriptArguments(trainer={}, table={}, syntax=OptionSyntax())


@cache
def renamed() -> Mapping[str, str]:
    """Names of earlier releases, and what they are called now."""
    found: Mapping[str, str] = argument_data("older", OWN)["renamed"]
    return found


@cache
def script_arguments(tool: str) -> ScriptArguments:
    """The arguments of a script with this trainer."""
    paths = [TOOLS[one].arguments for one in ([tool] if tool in TOOLS else TRL.values())]
    trainer = {name: row for path in paths[::-1] for name, row in argument_table(path).items()}
    others = BESIDE_TRAINER if tool == TRAINER else BESIDE
    if tool not in TOOLS:
        others = (*others, "others")
    table = dict(trainer)
    syntax = OptionSyntax()
    for path in paths:
        syntax = _joined(syntax, option_syntax(path, FOLDER))
    for name in others:
        table = {**argument_table(name, OWN), **table}
        syntax = _joined(syntax, option_syntax(name, OWN))
    aliases = {f"--{old}": new for old, new in renamed().items() if new in table}
    dashed = {old.replace("_", "-"): new for old, new in aliases.items()}
    syntax = OptionSyntax(
        switches=syntax.switches,
        lists=syntax.lists,
        aliases={**aliases, **dashed},
        abbreviations=False,
    )
    return ScriptArguments(trainer=trainer, table=table, syntax=syntax)


def _joined(one: OptionSyntax, other: OptionSyntax) -> OptionSyntax:
    return OptionSyntax(switches=one.switches | other.switches, lists=one.lists | other.lists)
