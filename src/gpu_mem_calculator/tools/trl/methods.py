"""Methods of training (SFT, DPO, GRPO) as settings of a run file, for a form.

The settings are those in which TRL's trainer of the method differs from its SFTTrainer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ...runfile.program import ModelFacts, Program, Setup
from ...runfile.read import parse
from ...runfile.resolve.resolve import resolve
from ...runfile.text.errors import InputError
from ...training.engines import DEFAULT, engine_names
from ..translation.arguments import tables
from ..translation.tools import translate

LENGTHS = {"prompt": 512, "seq_len": 1024}  # tokens; a form has its own
OF_THE_FORM = ("batch_size", "seq_len")  # keys of which every method has some value
SAMPLE = {"model": {"name": "gpt2"}, "hardware": {"num_gpus": 2}}
BATCH = "batch_size"


def methods() -> list[dict[str, Any]]:
    """Every method: by engine the settings, on another engine where the one chosen does not have
    it; `sequences` of the micro-batch for each example.
    """
    rows = cast(list[dict[str, Any]], tables(__file__))
    means = {row["name"]: _training(row["trainer"]) for row in rows}
    usual = means[rows[0]["name"]]
    own = {key for one in means.values() for key, value in one.items() if usual.get(key) != value}
    own -= {*OF_THE_FORM}
    return [_method(row, means[row["name"]], usual, own) for row in rows]


def _training(trainer: str) -> dict[str, Any]:
    """What a trainer means by its own defaults."""
    setup = Setup(num_gpus=1, releases={}, has_model=True, model=ModelFacts)
    return dict(translate(Program(tool=trainer, data=LENGTHS), setup).training)


def _method(
    row: Mapping[str, Any], means: Mapping[str, Any], usual: Mapping[str, Any], own: set[str]
) -> dict[str, Any]:
    """A row for the form. The first method has no settings: it is what a run is without any."""
    named = {} if means is usual else {key: means[key] for key in sorted(own) if key in means}
    settings = {f"training.{key}": value for key, value in named.items()}
    choice = {"settings": settings, "meaning": row["meaning"]}
    return {
        "name": row["name"],
        "title": row["title"],
        "marks": [f"training.{key}" for key in row["marks"]],
        "sequences": means[BATCH] // usual[BATCH],
        "engines": {
            one: {"engine": one if _has(one, named) else DEFAULT, **choice}
            for one in engine_names()
        },
    }


def _has(engine: str, training: Mapping[str, Any]) -> bool:
    """Whether an engine has these settings of training."""
    try:
        resolve(parse({**SAMPLE, "engine": {"type": engine}, "training": training}))
    except InputError:
        return False
    return True
