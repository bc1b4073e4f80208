"""The arguments of pretrain_gpt.py, with those of Model Optimizer and of older releases, and how
they are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ..reading.options import option_syntax
from ..translation.arguments import FOLDER, ArgumentTable, argument_table, tables

TOOL = "megatron"  # program.tool
TITLE = "Megatron-LM pretrain_gpt.py"
PATH, MODELOPT, HERE = "megatron/arguments", "modelopt", Path(__file__).parent
OLDER = option_syntax("older", HERE)
TABLE: ArgumentTable = {
    **argument_table(PATH),
    **argument_table(MODELOPT, HERE),
    **argument_table("older", HERE),
}
OWN = option_syntax(PATH, FOLDER)
SYNTAX = replace(
    OWN,
    flags=OWN.flags | OLDER.flags | option_syntax(MODELOPT, HERE).flags,
    aliases={**OWN.aliases, **OLDER.aliases},
    renamed=OLDER.renamed,
)
# Lists that mostly have one value.
SINGLE = ("moe_aux_loss_coeff", "moe_router_load_balancing_type", "cp_comm_type")
NUMBERS = frozenset(tables(__file__)["numbers"])  # arguments without a default that are numbers
LISTS = ("moe_layer_freq", "recompute_modules", "pipeline_model_parallel_layout")


def option_words(args: Mapping[str, Any]) -> Iterator[str]:
    """Arguments as the command line has them; None is left out."""
    names = {meant: name for name, meant in OWN.aliases.items()}
    for name, value in args.items():
        dashed = f"--{name.replace('_', '-')}"
        if value is None:
            continue
        if name in SYNTAX.flags:
            off = names.get(f"no_{name}", f"--no-{dashed[2:]}")
            yield names.get(name, dashed) if value else off
            continue
        yield names.get(name, dashed)
        if isinstance(value, list | tuple):
            yield from map(str, value)
        else:
            yield str(value)
