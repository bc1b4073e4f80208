"""Megatron-LM: tensor, sequence, pipeline, context and expert parallelism."""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.ledger import Ledger
from ...ledger.num import Num
from ...run.engine import Engine
from ...run.phases import STARTUP
from ...run.run import Run
from ...step.block_events import BlockRun, plays
from ...step.pipeline import beats, stage_layers, stage_of
from ...step.workspaces import workspace_entries
from .activations import activation_entries
from .checks import layout_problems, option_problems
from .options import OPTIONS, expert_streams
from .startup_stream import START, opening
from .states import STARTUP_BEATS, stage_shard, state_entries, with_experts
from .stream import stage_writer
from .walks import walks

TITLE = "Megatron-LM"


def problems(run: Run) -> Iterator[str]:
    """One sentence for each thing that Megatron would refuse."""
    yield from option_problems(run, TITLE)
    yield from layout_problems(run, TITLE)


def ledger(run: Run) -> Ledger:
    """One rank of the run's pipeline stage."""
    stage = stage_of(run)
    instants = with_experts(run, beats(stage, STARTUP_BEATS, every=run.unrolled))
    steps = tuple(b for b in instants if b.instant.phase != STARTUP)
    done = walks(run, stage)
    entries = (
        *state_entries(run, stage, instants),
        *activation_entries(run, stage, instants, done),
        *workspace_entries(run, steps),
    )
    played = {}
    if run.unrolled:
        played = plays(stage.blocks, instants, done)
        played[STARTUP_BEATS[0][0]] = BlockRun(block=START, script=opening(run), forward=True)
    return Ledger(tuple(b.instant for b in instants), entries, played, stage_writer(run, stage))


def parameters(run: Run) -> Num:
    """Elements of this rank's part of the model."""
    return stage_shard(run, stage_of(run)).total


ENGINE = Engine(
    name="megatron_lm",
    title=TITLE,
    transformers=False,
    side_streams=expert_streams,
    options=OPTIONS,
    axes=frozenset({"tp", "pp", "cp", "ep"}),
    optimizers=frozenset({"adam", "adamw", "sgd", "sgd_momentum", "lion"}),
    problems=problems,
    ledger=ledger,
    stage_layers=stage_layers,
    parameters=parameters,
)
