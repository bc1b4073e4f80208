"""Axolotl's optimizers: those of transformers.Trainer, and its own.

Axolotl 067b021 core/builders/base.py (_configure_optimizer), utils/schemas/enums.py
(CustomSupportedOptimizers).
"""

from __future__ import annotations

from collections.abc import Mapping

from ...runfile.text.errors import nearest
from ...runfile.trainer_optimizers import OPTIMIZERS, REFUSED
from ..reading.reading import Could
from .draft import Draft

_NARROW = (
    "its states in 8 or 4 bits are not modelled; the estimate has AdamW with states in the dtype "
    "of the weights"
)
_OTHER = "its states and temporaries are not modelled; the estimate has AdamW"
# Optimizers that are not modelled: the one that is estimated, why, and how the run could differ.
OTHERS: Mapping[str, tuple[str, str, Could]] = {
    **dict.fromkeys(
        ("adamw_torch_8bit", "adamw_torch_4bit", "ao_adamw_4bit", "ao_adamw_8bit", "ao_adamw_fp8"),
        ("adamw_torch_fused", _NARROW, "less"),
    ),
    **dict.fromkeys(
        ("flash_adamw", "flash_adam", "flash_sgd", "flash_sgdw", "flash_lion"),
        ("adamw_torch", _OTHER, "either"),
    ),
    **dict.fromkeys(
        ("optimi_adamw", "adopt_adamw", "came_pytorch", "dion", "sinkgd", "q_galore_adamw8bit"),
        ("adamw_torch", _OTHER, "either"),
    ),
    "muon": (
        "adamw_torch",
        "Muon keeps one state for a matrix where AdamW, which is estimated, keeps two; its "
        "orthogonalised update is a temporary of the largest matrix",
        "either",
    ),
}
NAMES = (*OPTIMIZERS, *REFUSED, *OTHERS)


def add_optimizer(draft: Draft) -> None:
    """Add the optimizer and its arguments."""
    given = draft.get("optimizer")
    name = str(given or "adamw_torch_fused")
    if "optimizer" not in draft.reading.keys:
        draft.assume(f"optimizer={name}, Axolotl's default")
    if name not in OPTIMIZERS:
        name = _substitute(draft, name)
    draft.args["optim"] = name
    if draft.get("weight_decay"):
        draft.args["weight_decay"] = draft.get("weight_decay")
    if draft.get("max_grad_norm") is not None:
        draft.args["max_grad_norm"] = draft.get("max_grad_norm")
    arguments = draft.get("optim_args")
    if arguments and name == given:
        pairs = arguments.items() if isinstance(arguments, Mapping) else None
        text = ",".join(f"{key}={value}" for key, value in pairs) if pairs else str(arguments)
        draft.args["optim_args"] = text


def _substitute(draft: Draft, name: str) -> str:
    """The optimizer that is estimated in the place of one that is not modelled."""
    if name in OTHERS:
        instead, why, could = OTHERS[name]
    elif name in REFUSED:
        instead, why, could = "adamw_torch", f"{REFUSED[name]}; the estimate has AdamW", "either"
    else:
        hint = nearest(name, list(NAMES))
        draft.reading.problems.append(f"optimizer={name!r} is not one of Axolotl's{hint}")
        return "adamw_torch_fused"
    draft.limit("optimizer", why, could)
    return instead
