"""The optimizers of transformers.Trainer as keys of a run file (`OPTIM` of other_names.py), and
those that are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...runfile.other_names import OPTIM
from ...training.optimizers import OPTIMIZERS
from ..translation.arguments import tables

REFUSED_OPTIMIZERS: Mapping[str, str] = tables(__file__)["refused"]  # with the reason
NEAREST = "use 'adamw_torch_fused', 'adafactor' or 'adamw_bnb_8bit'"


def optimizer_keys(optim: str, args: Mapping[str, Any]) -> dict[str, Any] | str:
    """Our keys for a value of `optim` and its arguments, or a sentence where it is refused."""
    name = str(getattr(optim, "value", optim))
    setting = f"program.args.optim={name!r}"
    if name in REFUSED_OPTIMIZERS:
        return f"{setting}: {REFUSED_OPTIMIZERS[name]}; {NEAREST}"
    if name not in OPTIM:
        return f"{setting} is not an optimizer of transformers.Trainer; {NEAREST}"
    given = _split_arguments(args.get("optim_args"))
    if given is None:
        return f"program.args.optim_args={args['optim_args']!r} must be such as 'momentum=0.9'"
    row = OPTIMIZERS[OPTIM[name]["optimizer"]]
    for key in given:
        if key not in row.free:
            return f"program.args.optim_args: {key} of {name} is not modelled; leave it out"
    if row.copied_by_decay and args.get("weight_decay"):
        copied = f"{setting} with weight decay copies all gradients, which is not modelled"
        return f"{copied}; set program.args.weight_decay=0"
    keys = dict(OPTIM[name])
    if name == "sgd" and given.get("momentum", 0.0):
        keys["optimizer"] = "sgd_momentum"
    return keys


def _split_arguments(text: Any) -> dict[str, float | str] | None:
    """`optim_args` by name (trainer_optimizer.py _parse_optim_args); None where it is no list."""
    if not text:
        return {}
    pairs = [part.partition("=") for part in str(text).replace(" ", "").split(",")]
    if not all(name and equals and value for name, equals, value in pairs):
        return None
    return {name: _number(value) for name, _, value in pairs}


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
