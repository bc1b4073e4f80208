"""DeepSpeed 0.19.8: ZeRO 0 to 3, offload, and its pipeline of whole layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ....ledger.units import MIB
from ....run.engine import Engine, HostLibraries
from ....run.run import Run
from ...optimizers import FUSED
from .checks import problems
from .options import FUSED_ADAM, OPTIMIZERS, OPTIONS, number, option

if TYPE_CHECKING:
    from ....ledger.ledger import Ledger


def ledger(run: Run) -> Ledger:
    """The ledger of one rank, for any ZeRO stage and any stage of a pipeline."""
    from .step_ledger import ledger

    return ledger(run)


def stage_layers(run: Run) -> list[int]:
    """The number of layers of each pipeline stage."""
    from .pipeline import layers_of_stages

    method = str(option(run, "partition_method"))
    return layers_of_stages(run.arch, int(run.mesh.pp), method)


def complete(run: Run) -> Run:
    """The run without the name of its optimizer's implementation, where that is DeepSpeed's own: a
    run that names it is the same run.
    """
    offloads = option(run, "offload_optimizer") != "none"
    named = run.implementation == FUSED and run.optimizer in FUSED_ADAM
    return replace(run, implementation="") if named and not offloads else run


def zero_streams(run: Run) -> bool:
    """Whether DeepSpeed makes CUDA streams: ZeRO 1 and 2 for reductions, 3 to overlap
    communication.

    deepspeed 0.19.8 zero/stage_1_and_2.py:599, zero/stage3.py:341.
    """
    stage = number(run, "zero_stage")
    return stage in (1, 2) or (stage == 3 and option(run, "overlap_comm") is not False)


ENGINE = Engine(
    name="deepspeed",
    tower="trained",
    title="DeepSpeed",
    package="deepspeed",
    side_streams=zero_streams,
    options=OPTIONS,
    axes=frozenset({"pp"}),
    optimizers=frozenset(OPTIMIZERS),
    host_libraries=HostLibraries(940 * MIB, "28 runs, 792 to 1039 MiB"),
    stepping_host=HostLibraries(830 * MIB, "6 runs of ZeRO 1 and 2, 727 to 840 MiB"),
    complete=complete,
    problems=problems,
    ledger=ledger,
    stage_layers=stage_layers,
)
