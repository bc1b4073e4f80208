"""The tools whose programs are modelled, and the translation of a program.

Whether the values of a program's arguments are of the kind that its tool takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ...ledger.quoting import quoted
from ...run.releases import package_name
from ...runfile.program import Program, Setup, Translation
from ..rows import TRANSLATE, refused_programs, tool_rows
from .arguments import (
    MEMORY,
    ArgumentTable,
    argument_data,
    argument_problems,
    argument_table,
    argument_values,
    assumed_defaults,
    flat_arguments,
    renamed,
)
from .at_release import AtRelease, arguments_by_new_names, at_release
from .kinds import TEXT, WHOLE, fits, kind_of
from .releases import order

# Whole numbers of arguments that are 1 or more, and those of a program's data.
KINDS: Mapping[str, list[str]] = argument_data("kinds", Path(__file__).parent)["kinds"]
# Tools that were read and cannot be answered: why, and which set-up can.
REFUSED_TOOLS: Mapping[str, str] = refused_programs()
TRAINER = "transformers.Trainer"
ONLINE = ("trl.GRPOTrainer", "trl.RLOOTrainer")  # they generate what they train on
STARTED = ("transformers", "trl", "lightning")  # tools that trace and measure can start
CHECKED = ("transformers", "trl")  # packages whose arguments have one kind of value each
LONGEST_VERSION = 40
Translate = Callable[[Program, Mapping[str, Any], Setup], Translation]


def kind_problems(table: ArgumentTable, program: Program) -> Iterator[str]:
    """A sentence for each value of another kind than its argument's."""
    for name, value in program.args.items():
        row = table.get(name)
        if row is None or row.effect != MEMORY or row.loose:
            continue
        kind = kind_of(name, row.type, row.default)
        if kind == TEXT and row.default is None:
            kind = ""  # a path, or what a file has in its place
        needed = kind == WHOLE and row.default is not None and name != "max_length"
        if value is None and not needed:
            continue
        if not fits(kind, value):
            yield f"program.args.{name}={quoted(value)} must be {kind}"
        elif name in KINDS["counts"] and isinstance(value, int) and value < 1:
            yield f"program.args.{name}={quoted(value)} must be 1 or more"
    for name in KINDS["data"]:
        value = program.data.get(name)
        if value is not None and not fits(WHOLE, value):
            yield f"program.data.{name}={quoted(value)} must be a whole number"


class Tool(Struct, frozen=True, kw_only=True):
    """A tool: its package and the version that was read, its table of arguments, its translation.

    - `arguments`: path of the table, without .toml
    - `module`: the module here whose `translate(program, values, setup)` returns a Translation
    - `own_model`: the arguments describe the model, too
    """

    package: str
    version: str
    arguments: str
    module: str
    own_model: bool = False


# One row for each tool, by the name in `program.tool`.
TOOLS: Mapping[str, Tool] = msgspec.convert(tool_rows(TRANSLATE), dict[str, Tool])


def translate(program: Program, setup: Setup) -> Translation:
    """The keys of a run file that a program means; its problems are in the result."""
    tool = TOOLS.get(program.tool)
    if tool is None:
        if program.tool in REFUSED_TOOLS:
            why = REFUSED_TOOLS[program.tool]
            return Translation(problems=[f"program.tool={program.tool!r} is not modelled: {why}"])
        from difflib import get_close_matches

        hint = get_close_matches(program.tool, TOOLS, n=1, cutoff=0.6)
        near = f"did you mean {hint[0]!r}?" if hint else f"it can be {', '.join(TOOLS)}"
        return Translation(problems=[f"program.tool={program.tool!r} is not modelled; {near}"])
    at = _at_release(program, tool, setup)
    version, table = tool.version, argument_table(tool.arguments)
    args = flat_arguments(table, program.args)
    older = {old: new for old, new in renamed(tool.arguments).items() if old in args and at is None}
    args = {older.get(name, name): value for name, value in args.items()}
    notes: list[str] = []
    problems: list[str] = []
    if at is not None:
        version, table, setup = at.release, at.table, replace(setup, releases=at.packages)
        args, notes, problems = arguments_by_new_names(at, program.tool, args)
    title, program = f"{program.tool} {version}", replace(program, args=args)
    problems += argument_problems(title, table, program.args) if not problems else []
    if tool.package in CHECKED:
        problems += kind_problems(table, program)
    if problems:
        return Translation(problems=problems)
    result = _translate(tool.module)(program, argument_values(table, program.args), setup)
    result.warnings += notes
    if at is None or order(at.release) > order(tool.version):
        result.warnings += _version_warning(program, tool)
    result.releases = dict(at.packages) if at else {package_name(tool.package): tool.version}
    result.assumed += (f"{old} is read as {new}, its name in {title}" for old, new in older.items())
    assumed = assumed_defaults(title, table, program.args)
    result.assumed += [assumed] if assumed else []
    return result


def _at_release(program: Program, tool: Tool, setup: Setup) -> AtRelease | None:
    """The tool at the program's release, where that is not the one that was read."""
    own = package_name(tool.package)
    version = program.version or setup.releases.get(own)
    others = {name: one for name, one in setup.releases.items() if name != own}
    if (version is None or version == tool.version) and not others:
        return None
    return at_release(tool.arguments, version or tool.version, others)


def program_values(program: Program, have: Mapping[str, str]) -> dict[str, Any]:
    """Every argument of a program by its name now, given or not, at the user's releases.

    have: these releases, by package
    """
    tool = TOOLS[program.tool]
    at = _at_release(program, tool, Setup(releases=have))
    table, names = at.table if at else argument_table(tool.arguments), renamed(tool.arguments)
    args = flat_arguments(table, program.args)
    defaults = {name: row.default for name, row in table.items()}
    return {**defaults, **{names.get(name, name): value for name, value in args.items()}}


@cache
def _translate(module: str) -> Translate:
    found: Translate = import_module(f"..{module}", __package__).translate
    return found


def _version_warning(program: Program, tool: Tool) -> Iterator[str]:
    """A sentence where the program's version is not the one that was read."""
    given = program.version
    if given is not None and given[:LONGEST_VERSION] != tool.version:
        read = f"{tool.package} {tool.version}, whose source was read"
        yield f"program.version={given[:LONGEST_VERSION]!r} is treated as {read}"


def start_problems(tool: str) -> Iterator[str]:
    """A sentence where a tool can be estimated, but not started by trace or measure."""
    if tool.partition(".")[0] not in STARTED:
        instead = "write its training and engine keys instead of the program"
        yield f"program.tool={tool!r} cannot be run here, only estimated; {instead}"
