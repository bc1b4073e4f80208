"""Lightning's precision names as keys of a run file (lightning 2.6.6 pytorch/plugins/precision).

amp.py: *-mixed runs forward under autocast without its cache of casts. half.py: *-true casts the
whole module. precision.py: 32-true leaves the weights as they were loaded.
"""

from __future__ import annotations

from typing import Any

# fabric/plugins/precision/utils.py: other spellings.
ALIASES = {"16": "16-mixed", "bf16": "bf16-mixed", "32": "32-true", "64": "64-true"}
MIXED = {"16-mixed": "float16", "bf16-mixed": "bfloat16"}
TRUE = {"16-true": "fp16_pure", "bf16-true": "bf16_pure"}
PURE = {"float32": "fp32", "bfloat16": "bf16_pure", "float16": "fp16_pure"}
NAMES = (*MIXED, *TRUE, "32-true")


def precision_name(value: Any) -> str:
    """The full name of a precision; None is 32-true."""
    word = "32-true" if value is None else str(value)
    return ALIASES.get(word, word)


def precision_keys(value: Any, dtype: str, adapters: bool) -> dict[str, Any] | str:
    """Our keys for weights that were loaded in `dtype`, or a sentence."""
    name = precision_name(value)
    given = f"program.args.precision={name!r}"
    if name not in NAMES:
        return f"{given} is not modelled; it can be {', '.join(NAMES)}"
    if dtype not in PURE:
        return f"program.load.dtype={dtype!r} must be 'float32', 'bfloat16' or 'float16'"
    if name in TRUE:
        return {"precision": TRUE[name]}
    if name == "32-true":
        return {"precision": PURE[dtype]}
    if dtype == "float32":
        return {"precision": f"{PURE[MIXED[name]][:4]}_mixed", "autocast_cache": False}
    if dtype != MIXED[name]:
        return f"{given} with weights in {dtype} is not modelled; load them in float32"
    if dtype == "float16" and not adapters:
        error = "torch's gradient scaler refuses gradients in float16"
        return f"{given}: {error}; load the weights in float32"
    return {"precision": PURE[dtype], "autocast": True, "autocast_cache": False}
