"""The ledger of an unrolled run: what models share as entries, blocks as plays, a keeper for all
that DeepSpeed makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from msgspec.structs import replace

from ...ledger.ledger import INPUTS_IN_FLIGHT, Entry, Instant, Ledger
from ..activations import STAY, Walks
from ..play import EMBEDDING, plays
from ..script import Script
from ..stack import Block
from ..timeline import STARTUP, Beat
from . import pipeline
from .coordinator import Limits
from .gathering import reads
from .keeper import Keeper
from .keeper0 import FusedKeeper, PipelineKeeper, PlainKeeper
from .keeper3 import ShardKeeper
from .keeper12 import SliceKeeper
from .plan import BIRTH, Plan
from .stage3 import shape
from .writer import ZeroWriter


def keeper_of(
    plan: Plan, stack: tuple[Block, ...], done: Walks, limits: Limits, group: int, cut: bool
) -> Callable[[ZeroWriter], Keeper]:
    """The part of DeepSpeed that a run uses; stage 3 goes through the modules of a model.

    `limits`, `group` and `cut` are for stage 3: what is gathered, the elements of a sub-group, and
    whether the model is built under zero.Init.
    """
    if plan.stage == 3:
        found = plays(stack, plan.beats, done).values()
        scripts = {play.block: reads(play.script) for play in found}
        scripts.pop(EMBEDDING, None)
        modules = shape(plan, stack)
        return lambda writer: ShardKeeper(plan, writer, modules, limits, scripts, group=group,
                                          zero_init=cut)  # fmt: skip
    kind: type[Keeper] = FusedKeeper
    if plan.stage:
        kind = SliceKeeper
    elif plan.run.precision == "fp32":
        kind = PlainKeeper
    elif plan.pipeline and plan.run.precision == "bf16_mixed":
        kind = PipelineKeeper
    return lambda writer: kind(plan, writer)


def shared_table(script: Script, *, alone: bool) -> Script:
    """Backward of an embedding that the head shares, where no sum of their gradients is made.

    The head's gradient takes the embedding's: deepspeed 0.19.8 zero/linear.py:129 makes it with a
    matmul of its own, and torch 2.11 sums out of place only where the first is a transposed view.
    `alone`: the head has a copy on another stage.
    """
    *events, _, _, old = script.backward
    rest = script.drops[1:]
    if alone:
        return replace(script, entry=-1, backward=tuple(events), drops=((0, ~old), *rest))
    return replace(script, backward=(*events, old), drops=((0, script.entry), *rest))


Entries = Callable[[tuple[Beat, ...], Walks], Iterable[Entry]]


def unrolled_ledger(
    plan: Plan, stack: tuple[Block, ...], done: Walks, entries_of: Entries,
    keeper: Callable[[ZeroWriter], Keeper],
) -> Ledger:  # fmt: skip
    """The ledger that a stream is written from: every layer by itself.

    `entries_of` gives what is beside layers, head and DeepSpeed's own tensors, at some beats.
    """
    run, done = plan.run, replace(done, gradients=STAY)
    beats = tuple(replace(b, later=False) for b in plan.beats)  # the keeper adds gradients up
    entries = [*entries_of(beats, done), *pipeline.workspaces(plan, stack)]
    found = plays(stack, beats, done)
    on_host = bool(run.options.get("cpu_checkpointing"))
    if on_host:  # those of other micro-batches have gone there
        entries = [e for e in entries if e.role != INPUTS_IN_FLIGHT]
    start = Instant(name=BIRTH, phase=STARTUP, title="start-up")
    return Ledger(
        (start, *(b.instant for b in plan.beats)), tuple(entries), found,
        partial(ZeroWriter, keeper=keeper, on_host=on_host),
        partial(ZeroWriter, keeper=partial(SliceKeeper, plan, tight=True), on_host=on_host)
        if plan.stage in (1, 2) else None,
    )  # fmt: skip
