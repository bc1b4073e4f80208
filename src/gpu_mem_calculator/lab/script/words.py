"""Words for what a script trains with: dtypes and optimizers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .host_values import ScriptRecorder

DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def run_words(parameters: Iterable[Any], optimizers: Iterable[Any], _: ScriptRecorder) -> list[str]:
    """Dtypes of the parameters, and the names of the optimizers."""
    dtypes = sorted({str(p.dtype).removeprefix("torch.") for p in parameters})
    words = [f"{' and '.join(DTYPES.get(name, name) for name in dtypes)} weights"]
    return words + sorted({type(one).__name__ for one in optimizers})
