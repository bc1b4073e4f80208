"""cuBLAS workspaces of a Megatron stage: torch's, and Transformer Engine's own."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ....ledger.ledger import RUNTIME, Entry
from ....ledger.num import Bytes, nothing
from ....ledger.source import code
from ....ledger.units import MIB
from ....models.arch.blocks import Moe
from ....run.run import Run
from ...step.instants import Instants
from ...step.pipeline import PipelineStage
from ...step.workspaces import workspace_entries
from .options import bits, engine_version, fused, option

GROUPED_STREAMS = 4  # common/util/cuda_runtime: nvte_get_num_compute_streams
ENGINE_CODE = code("Transformer Engine 2.18 pytorch/cpp_extensions/gemm.py:35-62")


def stage_workspaces(run: Run, stage: PipelineStage, instants: Instants) -> Iterator[Entry]:
    """torch's workspaces where torch runs a matmul, and Transformer Engine's.

    With Transformer Engine's layers torch runs the output layer, routers and unfused attention
    (tensor_parallel/layers.py, moe/router.py); the other matmuls share one workspace, and grouped
    ones of experts have another for each of their streams.
    """
    if not fused(run):
        yield from workspace_entries(run, instants)
        return
    routed = any(isinstance(group.layer.mlp, Moe) for group in stage.blocks)
    by_torch = routed or bits(run) == 32 or option(run, "attention_backend") == "unfused"
    here = 1 if by_torch else stage.last
    for entry in () if nothing(here) else workspace_entries(run, instants):
        yield replace(entry, live={name: copies * here for name, copies in entry.live.items()})
    size, count = engine_bytes(run), 1 + GROUPED_STREAMS * routed
    yield Entry(
        "Transformer Engine's cuBLAS workspaces",
        RUNTIME,
        size * count,
        {i.name: 1 for i in instants},
        ENGINE_CODE,
        tensors=lambda: [size] * count,
    )


def engine_bytes(run: Run) -> Bytes:
    """Bytes of one of Transformer Engine's workspaces: 32 MiB from Hopper on and 4 MiB before;
    1 KiB more since version 2.8, for NVFP4.
    """
    if float(run.compute_capability) < 9.0:
        return 4 * MIB
    return 32 * MIB + Bytes(1024 * (engine_version(run) >= (2, 8, 0)))
