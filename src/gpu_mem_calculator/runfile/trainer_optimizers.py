"""The optimizers of transformers.Trainer as keys of a run file.

transformers 5.17.0: the names are training_args.py OptimizerNames, what each makes is in
trainer_optimizer.py. With 8-bit states, trainer.py create_optimizer asks bitsandbytes for fp32
states of every nn.Embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..training.optimizers import OPTIMIZERS as ROWS

WIDE_TABLES = {"embedding_states_32bit": True}
# The value of `optim`, and our keys.
OPTIMIZERS: Mapping[str, Mapping[str, Any]] = {
    word: {
        "optimizer": name,
        **({"optimizer_implementation": kind} if kind else {}),
        **(WIDE_TABLES if row.block else {}),
    }
    for name, row in ROWS.items()
    for word, kind in row.optim.items()
}
_LOW_RANK = "projects gradients to a low rank, which is not modelled"
_FUSED_BACKWARD = "updates weights inside backward, which is not modelled"
_ELSEWHERE = "its package is not one whose source was read"
# The other values, and the reason why each is refused.
REFUSED_OPTIMIZERS: Mapping[str, str] = {
    "adamw_torch_xla": "it is for TPUs",
    "adamw_torch_npu_fused": "it is for NPUs",
    "adamw_apex_fused": "transformers 5 has no Apex optimizer",
    "adamw_hf": "transformers 5 has no optimizer of that name",
    "adamw_anyprecision": "torchdistx, which it needs, is no longer published",
    "adamw_torch_4bit": "torchao's step is compiled, and its temporaries are not modelled",
    "adamw_torch_8bit": "torchao's step is compiled, and its temporaries are not modelled",
    "galore_adamw": _LOW_RANK,
    "galore_adamw_8bit": _LOW_RANK,
    "galore_adafactor": _LOW_RANK,
    "galore_adamw_layerwise": _FUSED_BACKWARD,
    "galore_adamw_8bit_layerwise": _FUSED_BACKWARD,
    "galore_adafactor_layerwise": _FUSED_BACKWARD,
    "apollo_adamw": _LOW_RANK,
    "apollo_adamw_layerwise": _FUSED_BACKWARD,
    "lomo": _FUSED_BACKWARD,
    "adalomo": _FUSED_BACKWARD,
    "grokadamw": _ELSEWHERE,
    "schedule_free_radam": _ELSEWHERE,
    "schedule_free_adamw": _ELSEWHERE,
    "schedule_free_sgd": _ELSEWHERE,
    "stable_adamw": _ELSEWHERE,
}
NEAREST = "use 'adamw_torch_fused', 'adafactor' or 'adamw_bnb_8bit'"


def optimizer_keys(optim: str, args: Mapping[str, Any]) -> dict[str, Any] | str:
    """Our keys for a value of `optim` and its arguments, or a sentence where it is refused."""
    name = str(getattr(optim, "value", optim))
    setting = f"program.args.optim={name!r}"
    if name in REFUSED_OPTIMIZERS:
        return f"{setting}: {REFUSED_OPTIMIZERS[name]}; {NEAREST}"
    if name not in OPTIMIZERS:
        return f"{setting} is not an optimizer of transformers.Trainer; {NEAREST}"
    given = _split_arguments(args.get("optim_args"))
    if given is None:
        return f"program.args.optim_args={args['optim_args']!r} must be such as 'momentum=0.9'"
    row = ROWS[OPTIMIZERS[name]["optimizer"]]
    for key in given:
        if key not in row.free:
            return f"program.args.optim_args: {key} of {name} is not modelled; leave it out"
    if row.copied_by_decay and args.get("weight_decay"):
        copied = f"{setting} with weight decay copies all gradients, which is not modelled"
        return f"{copied}; set program.args.weight_decay=0"
    keys = dict(OPTIMIZERS[name])
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
