"""The ledger of an unrolled run: what models share as entries, blocks as plays, a keeper for all
that DeepSpeed makes.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from ...ledger.ledger import Entry, Instant, Ledger
from ...ledger.num import Num
from ..activations import STAY, Walks, activation_entries
from ..huggingface.ops import Setting
from ..play import plays
from ..runtime import workspace_entries
from ..stack import Block
from ..states import buffer_entry
from ..timeline import STARTUP
from . import pipeline
from .keeper import Keeper
from .keeper0 import FusedKeeper, PipelineKeeper, PlainKeeper
from .keeper12 import SliceKeeper
from .plan import BIRTH, Plan
from .writer import ZeroWriter


def keeper_of(plan: Plan) -> Callable[[ZeroWriter], Keeper]:
    """The part of DeepSpeed that a run uses, below stage 3."""
    kind: type[Keeper] = FusedKeeper
    if plan.stage:
        kind = SliceKeeper
    elif plan.run.precision == "fp32":
        kind = PlainKeeper
    elif plan.pipeline and plan.run.precision == "bf16_mixed":
        kind = PipelineKeeper
    return lambda writer: kind(plan, writer)


def unrolled_ledger(
    plan: Plan, how: Setting, stack: tuple[Block, ...], done: Walks, tokens_bytes: Num,
    keeper: Callable[[ZeroWriter], Keeper],
) -> Ledger:  # fmt: skip
    """Every layer by itself."""
    run, done = plan.run, replace(done, gradients=STAY)
    beats = tuple(replace(b, later=False) for b in plan.beats)  # the keeper adds gradients up
    buffers = buffer_entry(run, plan.beats)
    entries: list[Entry] = [
        replace(buffers, live={**buffers.live, BIRTH: 1}),
        *activation_entries(run, how, stack, beats, done),
        *(pipeline.buffer_entries(plan, tokens_bytes) if plan.pipeline else ()),
        *workspace_entries(run, plan.beats),
    ]
    start = Instant(name=BIRTH, phase=STARTUP, title="start-up")
    return Ledger(
        (start, *(b.instant for b in plan.beats)), tuple(entries), plays(stack, beats, done),
        lambda ledger: ZeroWriter(ledger, keeper),
    )  # fmt: skip
