"""Megatron-LM: tensor, sequence, pipeline, context and expert parallelism.

Line numbers in this folder refer to Megatron-Core 0.19.2.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ....ledger.ledger import Ledger
from ....ledger.num import Num
from ....ledger.units import MIB
from ....run.engine import Engine, HostLibraries
from ....run.phases import STARTUP
from ....run.run import Run
from ...losses import MEGATRON
from ...step.block_events import BlockRun, block_runs
from ...step.pipeline import PipelineStage, pipeline_stage, pipeline_stages, stage_layers
from ...step.pipeline import beats as stage_instants
from .activations import activation_entries
from .checks import deferral_problems, instance_problems, layout_problems, option_problems
from .interleaved_stream import stage_writer
from .layout import with_layout
from .options import OPTIMIZERS, OPTIONS, expert_streams, option
from .overlap_checks import overlap_problems
from .startup_stream import STARTUP_BLOCK, startup_events
from .states import STARTUP_INSTANTS, stage_shard, state_entries, with_experts
from .walks import walks as walk_stage
from .workspaces import stage_workspaces

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
    return [_stage_ledger(run, stage) for stage in pipeline_stages(run)]


def ledger(run: Run) -> Ledger:
    """The ledger of one rank of the run's pipeline stage, at the highest moment of its schedule."""
    stages = pipeline_stages(run)
    if len(stages) == 1:
        return _stage_ledger(run, stages[0])
    rolled = replace(run, unrolled=False)
    peaks = [int(_stage_ledger(rolled, stage).peak()) for stage in pipeline_stages(rolled)]
    return _stage_ledger(run, stages[peaks.index(max(peaks))])


def _stage_ledger(run: Run, stage: PipelineStage) -> Ledger:
    """The ledger of a stage at one moment."""
    instants = with_experts(run, stage_instants(stage, STARTUP_INSTANTS, every=run.unrolled))
    in_step = tuple(i for i in instants if i.instant.phase != STARTUP)
    walks = walk_stage(run, stage)
    entries = (
        *state_entries(run, stage, instants),
        *activation_entries(run, stage, instants, walks),
        *stage_workspaces(run, stage, in_step),
    )
    runs = {}
    if run.unrolled:
        runs = block_runs(stage.blocks, instants, walks)
        startup = BlockRun(block=STARTUP_BLOCK, script=startup_events(run), forward=True)
        runs[STARTUP_INSTANTS[0][0]] = startup
    return Ledger(tuple(i.instant for i in instants), entries, runs, stage_writer(run, stage))


def parameters(run: Run) -> Num:
    """Elements of the parameters on this rank."""
    return stage_shard(run, pipeline_stage(run)).total


ENGINE = Engine(
    name="megatron_lm",
    title=TITLE,
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
