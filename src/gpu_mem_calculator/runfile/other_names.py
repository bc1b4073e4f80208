"""Other people's names for the keys and values of a run, with ours: those of `other_names.toml`,
and those that the rows of optimizers and engines have.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from ..catalog.kept import read_table
from ..ledger.quoting import quoted
from ..training.engines import shorthands
from ..training.optimizers import OPTIMIZERS

Settings = dict[str, Any]  # our keys, as `section.key`, with their values

CHECKPOINTING, DTYPE = "training.activation_checkpointing", "training.dtype"
OPTIMIZER, KERNELS = "training.optimizer", "training.optimizer_implementation"
# With 8-bit states, trainer.py create_optimizer asks bitsandbytes for fp32 states of every
# nn.Embedding (transformers 5.17.0).
WIDE_TABLES = {"embedding_states_32bit": True}
# The values of `optim` in transformers.Trainer (training_args.py OptimizerNames), and our keys of
# the training section: what each makes is in trainer_optimizer.py.
OPTIM: Mapping[str, Mapping[str, Any]] = {
    word: {
        "optimizer": name,
        **({"optimizer_implementation": kind} if kind else {}),
        **(WIDE_TABLES if row.block else {}),
    }
    for name, row in OPTIMIZERS.items()
    for word, kind in row.optim.items()
}
# Words for values of our keys. Of an optimizer: bytes are equal where a kernel differs in speed
# alone; of an engine: what it says about its options, too.
VALUES: Mapping[str, Mapping[str, Settings]] = {
    OPTIMIZER: {
        alias: {OPTIMIZER: name, **({KERNELS: kind} if kind else {})}
        for name, row in OPTIMIZERS.items()
        for alias, kind in {**row.optim, **row.aliases}.items()
        if alias not in OPTIMIZERS
    },
    "engine.type": {
        short: {"engine.type": name, **{f"engine.{key}": value for key, value in options.items()}}
        for short, (name, options) in shorthands().items()
    },
}


@cache
def tables() -> Mapping[str, Mapping[str, Any]]:
    """The tables of other_names.toml, which is read when a name is met that is not ours."""
    found: dict[str, dict[str, Any]] = read_table(f"{os.path.dirname(__file__)}/other_names.toml")
    flags = {"true": True, "false": False}
    for table in ("flags", "defaults"):
        for name, meanings in found[table].items():
            found[table][name] = {flags.get(key, key): one for key, one in meanings.items()}
    return found


def default_settings(name: str, value: bool) -> Settings:
    """What a name and its value say where no other key of the run does."""
    meanings: Mapping[Any, Settings] = tables()["defaults"].get(name, {})
    return meanings.get(value, {})


def translated(path: str, value: Any, *, serving: bool = False) -> Settings | str | None:
    """What a key that is not ours means.

    Returns our keys with their values, a sentence on what to write instead, or None where the name
    is unknown. `serving`: the run has an `inference` section.
    """
    name, known = path.rpartition(".")[2], tables()
    if serving and name in known["serving_renamed"]:
        return {known["serving_renamed"][name]: value}
    if path.startswith("training.lora.") and name in known["lora_renamed"]:
        return {known["lora_renamed"][name]: value}
    if name == "optim" and str(value) in OPTIM:
        return {f"training.{key}": one for key, one in OPTIM[str(value)].items()}
    if name in known["renamed"]:
        return translated_value(known["renamed"][name], value)
    if name in known["flags"]:
        meanings = known["flags"][name]
        if not _listed(value, meanings):
            return f"{path}={quoted(value)} must be {_or(meanings)}"
        return dict(meanings[value])
    if name == "gradient_checkpointing_kwargs" and isinstance(value, Mapping):
        return {"training.checkpoint_reentrant": bool(value.get("use_reentrant", False))}
    if name in known["no_memory"]["names"]:
        return {}
    if name in known["answers"]:
        answer = known["answers"][name]
        return {} if value in (False, None, "") else f"{path}={quoted(value)}: {answer}"
    return None


def translated_value(path: str, value: Any) -> Settings:
    """One of our keys with its value; another's word for the value becomes ours."""
    word = value.strip().lower() if isinstance(value, str) else None
    meaning = VALUES[path].get(word or "") if path in VALUES else None
    return {path: value} if meaning is None else dict(meaning)


def _listed(value: Any, choices: Iterable[Any]) -> bool:
    """Whether a value is one of the choices, where 1 is not true."""
    return any(type(value) is type(one) and value == one for one in choices)


def _or(choices: Iterable[Any]) -> str:
    return " or ".join(str(one).lower() for one in choices)
