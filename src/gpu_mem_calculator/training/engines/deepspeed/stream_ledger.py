"""The ledger of an unrolled run: entries for what models share, events for the blocks, and a
`ZeroRank` for all tensors of DeepSpeed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from msgspec.structs import replace

from ....ledger.ledger import INPUTS_IN_FLIGHT, Entry, Instant, Ledger
from ....pytorch.autograd.events import BlockEvents
from ....run.phases import STARTUP
from ...step.activations import KEEP_FOR_STEP, StageWalks
from ...step.block_events import block_runs
from ...step.instants import Instants
from ...step.layer_groups import LayerGroups
from . import pipeline
from .layout import BUILD, ZeroLayout
from .ledger import block_table
from .levels import GATHER_HOOKS
from .options import option
from .rank import ZeroRank
from .rank_stage0 import Stage0Fp32Rank, Stage0FusedRank, Stage0PipelineRank
from .rank_stage3 import Stage3Rank
from .rank_stage12 import Stage12Rank
from .stream import ZeroStreamWriter


def rank_factory(
    plan: ZeroLayout, stack: LayerGroups, walks: StageWalks
) -> Callable[[ZeroStreamWriter], ZeroRank]:
    """A function that makes the `ZeroRank` of a run on a stream writer."""
    if plan.stage == 3:
        model = block_table(plan, stack, walks).only_hooks(*GATHER_HOOKS).gathered(plan)
        return lambda writer: Stage3Rank(plan, writer, model)
    kind: type[ZeroRank] = Stage0FusedRank
    if plan.stage:
        kind = Stage12Rank
    elif plan.run.precision == "fp32":
        kind = Stage0Fp32Rank
    elif plan.bf16_optimizer:
        kind = Stage0PipelineRank
    return lambda writer: kind(plan, writer)


def shared_table_events(table: BlockEvents, *, alone: bool) -> BlockEvents:
    """Backward of an embedding that the head shares, where no third tensor is made for the sum.

    The embedding's gradient is added to the head's in place: deepspeed 0.19.8 zero/linear.py:129
    makes it with a matmul of its own, and torch 2.11 sums out of place only where the first is a
    transposed view. A loss that makes the head's gradient itself has it added in place already.
    `alone`: the head has a copy on another stage.
    """
    anew = table.drops[0][1] != table.entry  # the sum is a third tensor
    *events, old = table.backward
    events = events[:-2] if anew else events
    rest = table.drops[1:]
    if alone:
        return replace(table, entry=-1, backward=tuple(events), drops=((0, ~old), *rest))
    return replace(table, backward=(*events, old), drops=((0, table.entry), *rest))


BesideEntries = Callable[[Instants, StageWalks], Iterable[Entry]]


def unrolled_ledger(
    plan: ZeroLayout, stack: LayerGroups, walks: StageWalks, beside: BesideEntries
) -> Ledger:
    """The ledger from which the stream is written: each layer is a group.

    `beside` gives the entries of what is beside layers, head and DeepSpeed's own tensors.
    """
    rank = rank_factory(plan, stack, walks)
    run, walks = plan.run, replace(walks, gradients=KEEP_FOR_STEP)
    instants = tuple(replace(b, later=False) for b in plan.instants)  # the rank adds gradients up
    entries = [*beside(instants, walks), *pipeline.pipeline_workspaces(plan, stack)]
    runs = block_runs(stack, instants, walks)
    on_host = bool(option(run, "cpu_checkpointing"))
    if on_host:  # the inputs of other micro-batches are on the host
        entries = [e for e in entries if e.role != INPUTS_IN_FLIGHT]
    start = Instant(name=BUILD, phase=STARTUP, title="start-up")
    named = (start, *(b.instant for b in plan.instants))
    writer = partial(ZeroStreamWriter, rank=rank, on_host=on_host)
    tight = None
    if plan.stage in (1, 2):
        squeezed = partial(Stage12Rank, plan, tight=True)
        tight = partial(ZeroStreamWriter, rank=squeezed, on_host=on_host)
    return Ledger(named, tuple(entries), runs, writer, tight)
