"""DDP's option and the bits of each precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....run.run import Precision, Run

PRECISIONS = {
    "fp32": Precision(32, 32),
    "bf16_mixed": Precision(32, 32, autocast=True),
    "fp16_mixed": Precision(32, 32, autocast=True),
    "bf16_pure": Precision(16, 16),
    "fp16_pure": Precision(16, 16),
}
OPTIONS: Mapping[str, Any] = {"gradient_as_bucket_view": False, "init_device": "cuda"}


def option(run: Run, name: str) -> Any:
    """An option of the run, or DDP's default."""
    return run.options.get(name, OPTIONS[name])
