"""The optimizers of transformers.Trainer (5.17.0, OptimizerNames) as keys of a run file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The value of `optim`, and our keys.
OPTIMIZERS: Mapping[str, Mapping[str, Any]] = {
    "adamw_torch": {"optimizer": "adamw"},
    "adamw_torch_fused": {"optimizer": "adamw", "optimizer_implementation": "fused"},
    "adamw_bnb_8bit": {"optimizer": "adamw_8bit"},
    "adamw_8bit": {"optimizer": "adamw_8bit"},
    "paged_adamw_8bit": {"optimizer": "paged_adamw_8bit"},
    "adafactor": {"optimizer": "adafactor"},
    "sgd": {"optimizer": "sgd"},
    "lion_32bit": {"optimizer": "lion"},
    "lion_8bit": {"optimizer": "lion_8bit"},
}


def optimizer_keys(optim: str, args: Mapping[str, Any]) -> dict[str, Any] | str:
    """Our keys for a value of `optim`, or a sentence where it is not modelled."""
    found = OPTIMIZERS.get(str(optim))
    if found is None:
        known = ", ".join(OPTIMIZERS)
        return f"program.args.optim={optim!r} is not modelled; it can be {known}"
    return dict(found)
