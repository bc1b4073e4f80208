"""What the page's form shows of a run, besides what the run file says: the settings that hold,
and choices that would be refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..estimates.calculator import Estimate
from ..runfile.config import GPUConfig, TrainingConfig
from ..runfile.read import key_types, with_settings
from ..runfile.resolve.resolve import resolve
from ..runfile.resolve.resolve_training import AXES
from ..runfile.text.errors import InputError
from ..tools.read import TEXT_ALONE, read

MOST_CHOICES = 2000
OTHER_NAMES = {"batch_size": "batch", "seq_len": "seq"}  # of training's keys in a run
FORM = 'the body must be {"run": a run file, "choices": [["section.key=value"], ...]}'


def refused_choices(body: Any) -> list[str | None]:
    """For each choice of a body, a list of settings, why the run is refused with it; null where it
    is not. What is wrong with the run already is no reason against a choice.
    """
    given = body if isinstance(body, Mapping) and body.keys() == {"run", "choices"} else {}
    run, choices = given.get("run"), given.get("choices")
    if not isinstance(run, Mapping) or not isinstance(choices, list):
        raise InputError(FORM)
    for one in choices:
        if not isinstance(one, list) or not all(isinstance(text, str) for text in one):
            raise InputError(FORM)
    if len(choices) > MOST_CHOICES:
        raise InputError(f"{len(choices):,} choices are too many; ask for at most {MOST_CHOICES:,}")
    known = _problems(run, ())
    tried = (_problems(run, settings) for settings in choices)
    return [next((one for one in problems if one not in known), None) for problems in tried]


def _problems(run: Mapping[str, Any], settings: Any) -> list[str]:
    """Why a run is refused with some settings."""
    try:
        resolve(read(with_settings(dict(run), settings), TEXT_ALONE).file)
    except InputError as error:
        return error.problems
    return []


def settings_that_hold(estimate: Estimate) -> dict[str, Any]:
    """The value of each key that a run has, also where its file leaves it open, as far as it is a
    plain one.
    """
    run, hardware = estimate.resolved.run, estimate.resolved.hardware
    found = {f"hardware.{key}": getattr(hardware, key, None) for key in key_types(GPUConfig)}
    if estimate.serves:
        found |= {f"inference.{key}": value for key, value in run.options.items()}
    else:
        found |= {f"engine.{key}": value for key, value in run.options.items()}
        axes = {"dp": "data_parallel_size", **AXES}
        found |= {f"parallelism.{key}": getattr(run.mesh, axis) for axis, key in axes.items()}
        found |= {f"training.{key}": getattr(run, key, None) for key in key_types(TrainingConfig)}
        found |= {f"training.{key}": getattr(run, name) for key, name in OTHER_NAMES.items()}
    return {key: value for key, value in found.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    return isinstance(value, int | float | str) and value != ""
