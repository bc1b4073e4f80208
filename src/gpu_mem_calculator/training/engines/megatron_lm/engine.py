"""Megatron-LM: tensor, sequence, pipeline, context and expert parallelism; what is refused.

Line numbers in this folder refer to Megatron-Core 0.19.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ....ledger.num import Num
from ....ledger.units import MIB
from ....run.engine import Engine, HostLibraries
from ....run.run import Run
from ...losses import MEGATRON
from .checks import deferral_problems, instance_problems, layout_problems, option_problems
from .layout import with_layout
from .options import OPTIMIZERS, OPTIONS, distributed, expert_streams, fused, option

if TYPE_CHECKING:
    from ....ledger.ledger import Ledger


def overlap_problems(run: Run) -> Iterator[str]:
    """What overlapped collectives need (megatron/training/arguments.py validate_args)."""
    tensor, weights = "engine.tp_comm_overlap=true", "engine.overlap_param_gather=true"
    if option(run, "tp_comm_overlap"):
        if not fused(run):
            yield f"{tensor} is Transformer Engine's, and layers are local; leave it out"
        elif not run.sequence_parallel:
            yield f"{tensor} needs parallelism.sequence_parallel=true; set it"
    if option(run, "overlap_param_gather"):
        if not distributed(run):
            yield f"{weights} needs distributed_optimizer=true; set it"
        elif not option(run, "overlap_grad_reduce"):
            yield f"{weights} needs overlap_grad_reduce=true; set it"


TITLE = "Megatron-LM"


def problems(run: Run) -> Iterator[str]:
    """One sentence for each thing that Megatron would refuse."""
    yield from option_problems(run, TITLE)
    yield from layout_problems(run, TITLE)
    yield from instance_problems(run)
    yield from deferral_problems(run)
    yield from overlap_problems(run)


def complete(run: Run) -> Run:
    """The run with the layers of every stage and the micro-batch group of its options."""
    group = option(run, "microbatch_group_size_per_virtual_pipeline_stage")
    return with_layout(replace(run, micro_batch_group=group or 0))


def ledgers(run: Run) -> list[Ledger]:
    """The ledger of one rank at each moment of its schedule that may have the peak."""
    from .step_ledger import ledgers

    return ledgers(run)


def ledger(run: Run) -> Ledger:
    """The ledger of one rank of the run's pipeline stage, at the highest moment of its schedule."""
    from .step_ledger import ledger

    return ledger(run)


def stage_layers(run: Run) -> list[int]:
    """The number of layers of each pipeline stage."""
    from ...step.pipeline import stage_layers

    return stage_layers(run)


def parameters(run: Run) -> Num:
    """Elements of the parameters on this rank."""
    from .step_ledger import parameters

    return parameters(run)


ENGINE = Engine(
    name="megatron_lm",
    title=TITLE,
    package="megatron-core",
    transformers=False,
    side_streams=expert_streams,
    options=OPTIONS,
    axes=frozenset({"tp", "pp", "cp", "ep"}),
    optimizers=frozenset(OPTIMIZERS),
    loss_kernels=MEGATRON,
    complete=complete,
    host_libraries=HostLibraries(780 * MIB, "11 runs, 674 to 879 MiB"),
    problems=problems,
    ledger=ledger,
    ledgers=ledgers,
    stage_layers=stage_layers,
    parameters=parameters,
)
