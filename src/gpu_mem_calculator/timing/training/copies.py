"""Seconds of what engines do with gathered weights and with gradients, for one micro-batch.

Copies around collectives run whether or not the collective moves anything, and take memory
bandwidth from the kernels beside them.
"""

from __future__ import annotations

from ...ledger.num import sized
from ...run.engine_row import REPLICATE, SHARD_UNITS
from ...run.run import Run
from ...training.engines import engine_row
from ...training.engines.fsdp.options import KEEP_GATHERED
from ..curves.elementwise import PLAIN
from ..curves.machine import Machine
from .elementwise import elementwise_seconds
from .parameters import RankParameters
from .step_seconds import Seconds
from .traffic import MemoryKernel

# Bytes of a gradient's element in ZeRO's bucket: copied into it (read and write), divided by the
# ranks (read and write). deepspeed 0.19.8 runtime/zero/stage_1_and_2.py, average_tensor.
BUCKET_BYTES = 8


def copy_seconds(run: Run, engine: str, machine: Machine, owned: RankParameters) -> Seconds:
    """Seconds of the copies of FSDP and ZeRO."""
    row = engine_row(engine)
    if row.ranks == SHARD_UNITS:
        copied = _fsdp_bytes(run, owned, row.precision(run).compute // 8)
        return elementwise_seconds(machine, [MemoryKernel("fsdp.copies", copied)])
    if row.zero_hooks and run.options.get("zero_stage"):
        return elementwise_seconds(
            machine, [MemoryKernel("zero.bucket", owned.trained * BUCKET_BYTES)]
        )
    return 0.0


def accumulation_seconds(run: Run, engine: str, machine: Machine, owned: RankParameters) -> Seconds:
    """Seconds to add the gradients of a micro-batch to those of the ones before, in place, where
    autograd keeps them.
    """
    row = engine_row(engine)
    if row.ranks != REPLICATE:
        return 0.0
    bits = row.precision(run).weights
    return elementwise_seconds(
        machine, [MemoryKernel("gradient.added", 3 * sized(owned.trained, bits), PLAIN)]
    )


def _fsdp_bytes(run: Run, owned: RankParameters, width: int) -> Seconds:
    """What a gather copies out of its buffer, in forward and unless kept in backward; what a
    reduction copies into its own (torch 2.11 fsdp/_fully_shard/_fsdp_collectives.py). `width`:
    bytes of a gathered element.
    """
    gathers = 1 if run.options["sharding_strategy"] in KEEP_GATHERED else 2
    reduced = 4 if run.options["reduce_dtype"] == "fp32" else width
    return owned.dense * 2 * width * gathers + owned.trained * (width + reduced)
