"""DeepSpeed's row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....run.cuda.runtimes import CUDA, GAUDI, ROCM, XPU
from ....run.engine_row import TRANSFORMERS, ZERO, EngineRow
from ....run.run import DEFAULT_OPTIMIZER
from .options import PRECISIONS


def title_of(keys: Mapping[str, Any]) -> tuple[str, str]:
    """The ZeRO stage, where the run has one."""
    stage = f"ZeRO-{keys['zero_stage']}" if "zero_stage" in keys else ""
    return f"DeepSpeed {stage}".rstrip(), stage or "DeepSpeed"


# It has no accelerator for TPUs (deepspeed 0.19.8 accelerator/).
ROW = EngineRow(
    title_of=title_of,
    margin=0.012,
    job="deepspeed",
    recipe={
        "training.autocast": None,
        "training.precision": "bf16_mixed",
        "training.optimizer": DEFAULT_OPTIMIZER,
    },
    layers=TRANSFORMERS,
    ranks=ZERO,
    precision=lambda run: PRECISIONS[run.precision],
    runtimes=(CUDA, ROCM, XPU, GAUDI),
    interval="DeepSpeed",
)
