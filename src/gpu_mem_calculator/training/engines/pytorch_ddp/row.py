"""PyTorch's row: one GPU, and DistributedDataParallel."""

from __future__ import annotations

from ....run.cuda.runtimes import EVERY
from ....run.engine_row import REPLICATE, TRANSFORMERS, EngineRow
from .options import PRECISIONS

ROW = EngineRow(
    title_of=lambda keys: ("PyTorch DDP", "DDP"),
    margin=0.015,
    job="pytorch",
    layers=TRANSFORMERS,
    ranks=REPLICATE,
    precision=lambda run: PRECISIONS[run.precision],
    runtimes=EVERY,
    interval="PyTorch",
)
