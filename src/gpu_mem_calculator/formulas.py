"""Published closed forms, each with its citation: see `estimates/published/formulas.py`."""

from __future__ import annotations

from .estimates.published.formulas import (
    adam_state_bytes,
    layer_activation_bytes,
    parameter_bytes,
    zero_communication_volume,
    zero_model_states,
)

__all__ = [
    "adam_state_bytes",
    "layer_activation_bytes",
    "parameter_bytes",
    "zero_communication_volume",
    "zero_model_states",
]
