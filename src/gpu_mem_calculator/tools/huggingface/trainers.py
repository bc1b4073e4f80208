"""Which trainer a command starts: by TRL's subcommand, by the script's text, by its name.

And the arguments that a script of this trainer may have, and how they are written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from ...runfile.text.errors import InputError
from ..reading.options import OptionSyntax, option_syntax
from ..translation.arguments import FOLDER, ArgumentTable, argument_table, tables
from ..translation.arguments import renamed as other_names
from ..translation.tools import TOOLS, TRAINER

if TYPE_CHECKING:
    from ..script.record import ScriptRecord
    from ..script.values import Thing

TABLES = tables(__file__)
# TRL's subcommands, and the words in a script's name.
TRL: Mapping[str, str] = TABLES["trl"]
# Trainers by their class.
CLASSES: Mapping[str, str] = {
    **{one.removeprefix("trl."): one for one in TRL.values()},
    **dict.fromkeys(("Trainer", "Seq2SeqTrainer"), TRAINER),
}
ANOTHER = TRAINER  # for another class, which script_trainer.py names in a limit
NEARER = ("GRPOTrainer", "RLOOTrainer", "DPOTrainer", "KTOTrainer", "RewardTrainer", "SFTTrainer")
# TRL's trainers that are not modelled, by the words in a script's name.
OTHERS: Mapping[str, str] = TABLES["others"]
OWN = Path(__file__).parent
# Tables beside the trainer's own, the first of them wins.
BESIDE = ("script", "recipes", "older")
BESIDE_TRAINER = ("examples", "script", "recipes", "older")
LIGHTNING = ("lightning", "pytorch_lightning", "pl")


def trainer_of_name(name: str) -> str | None:
    """The trainer that a script's name means, such as `run_dpo.py`; None where it means none."""
    parts = re.split(r"[^a-z0-9]+", name.lower().removesuffix(".py"))
    joined = "_".join(parts)
    for word, tool in OTHERS.items():
        if re.search(rf"(^|_){word}(_|$)", joined):
            return tool
    found = [tool for word, tool in {**TRL, "gspo": TRL["grpo"]}.items() if word in parts]
    return found[0] if found else None


def made_trainer(found: ScriptRecord) -> Thing | None:
    """The trainer that a script makes: the one that trains, else the last."""
    made, trained = found.of_kind("trainer"), trained_trainers(found)
    return trained[0] if trained else made[-1] if made else None


def trained_trainers(found: ScriptRecord) -> list[Thing]:
    """The trainers whose `train` a script calls, in the order in which they are made."""
    return [one for one in found.of_kind("trainer") if one.values.get("trained")]


def is_loop(found: ScriptRecord) -> bool:
    """Whether a script without a trainer trains a model itself."""
    accelerated = any(one.values.get("backward") for one in found.of_kind("accelerator"))
    backward = found.facts.get("backward") or accelerated
    return bool(backward) and loop_model(found) is not None


def loop_model(found: ScriptRecord) -> Thing | None:
    """The model that a loop trains: that of the optimizer, else the one that computes a forward
    pass, else the first.
    """
    from ..script.values import Thing

    models = found.of_kind("model")
    for one in found.of_kind("optimizer"):
        for part in one.values.values():
            if isinstance(part, Thing) and part.model in models:
                return part.model
    forward = [one for one in models if one.values.get("forward")]
    return forward[0] if forward else models[0] if models else None


def trainer_of_text(found: ScriptRecord, path: str) -> str | None:
    """The trainer that a script makes; None where its text shows none."""
    if any(one.partition(".")[0] == "unsloth" for one in found.imports):
        return "unsloth"
    made = made_trainer(found)
    if made is not None:
        if made.values.get("path", "").partition(".")[0] in LIGHTNING:
            why = "whose module decides what a step keeps; use gpu-mem-calc trace"
            raise InputError(f"{path} makes a Trainer of Lightning, {why} -- python {path}")
        if f"trl.{made.name}" in OTHERS.values():
            return f"trl.{made.name}"
        return CLASSES.get(made.name, ANOTHER)
    if is_loop(found):
        return TRAINER
    return next((CLASSES[name] for name in (*NEARER, *CLASSES) if name in found.imports), None)


class ScriptArguments(Struct, frozen=True, kw_only=True):
    """The arguments of a script, those of its trainer among them, and how they are written."""

    trainer: ArgumentTable
    table: ArgumentTable
    syntax: OptionSyntax


NO_ARGUMENTS = ScriptArguments(trainer={}, table={}, syntax=OptionSyntax())


@cache
def renamed() -> Mapping[str, str]:
    """Names of earlier releases, and what they are called now."""
    return {**other_names(TOOLS[TRAINER].arguments), **other_names("older", OWN)}


@cache
def script_arguments(tool: str) -> ScriptArguments:
    """The arguments of a script with this trainer."""
    paths = [TOOLS[one].arguments for one in ([tool] if tool in TOOLS else TRL.values())]
    trainer = {name: row for path in paths[::-1] for name, row in argument_table(path).items()}
    others = BESIDE_TRAINER if tool == TRAINER else BESIDE
    if tool not in TOOLS:
        others = (*others, "others")
    table = dict(trainer)
    for name in others:
        table = {**argument_table(name, OWN), **table}
    written = [option_syntax(path, FOLDER) for path in paths]
    written += [option_syntax(name, OWN) for name in others]
    aliases = {f"--{old}": new for old, new in renamed().items() if new in table}
    dashed = {old.replace("_", "-"): new for old, new in aliases.items()}
    syntax = OptionSyntax(
        switches=frozenset().union(*(one.switches for one in written)),
        lists=frozenset().union(*(one.lists for one in written)),
        aliases={**aliases, **dashed},
        abbreviations=False,
    )
    return ScriptArguments(trainer=trainer, table=table, syntax=syntax)
