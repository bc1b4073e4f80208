"""Running a tape forward: which tensors it makes and frees in which order, and how high it gets."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from ..ledger.num import Num, nothing
from .events import BlockEvents, EventRecorder
from .peak import PeakParts, PeakTracker
from .tape import Op, Tape, Value

FOR_BACKWARD = ("attn.logsumexp", "ssm.")
NOTHING, KEPT, LET_GO = "nothing", "kept", "let go"  # what becomes of tensors only for backward


def owners(tape: Tape, *outside: Value) -> dict[int, Value]:
    """Every tensor with a storage of its own."""
    found = {value.index: value for value in outside}
    for op in tape.ops:
        for value in (*op.outs, *op.saves):
            if value.base == value.index:
                found[value.index] = value
    return found


def forward(
    reel: EventRecorder,
    tape: Tape,
    outside: tuple[Value, ...],
    exit_: Value,
    own: dict[int, Value],
    stays: set[int],
    *,
    saves: str,
) -> tuple[PeakParts, dict[int, int]]:
    """The highest moment of a forward after which `stays` are left, and its tensors' numbers.

    `outside` is there before it: the block's input, and whatever else the tape reads. `saves`
    says what becomes of the tensors that an operation makes for its backward alone.
    """
    last: dict[int, int] = {}
    for i, op in enumerate(tape.ops):
        for value in (*op.outs, *op.ins):
            last[value.base] = i
    last.pop(exit_.base, None)
    ends: dict[int, list[int]] = {}
    for index, i in last.items():
        if index in own and index not in stays:
            ends.setdefault(i, []).append(index)
    ids = {value.index: reel.number(value.bytes) for value in outside}
    reel.act = 0
    for value in outside:
        reel.act = reel.act + value.bytes
    high = PeakTracker(reel.act)
    for i, op in enumerate(tape.ops):
        more = _for_backward(op, ids) if saves == LET_GO and op.saves else []
        pieces = () if nothing(op.temp) else op.pieces
        begin, work = len(reel.events), reel.work((*more, *(() if op.inside else pieces)))
        for value in op.outs:
            if value.base == value.index:
                ids[value.index] = reel.make(value.bytes)
        for value in op.saves if saves == KEPT else ():
            if value.base not in ids and value.base in stays:
                ids[value.base] = reel.make(value.bytes)
        work += reel.work(pieces if op.inside else ())
        high.see(reel.act, 0, op.temp + sum(more) if more else op.temp)
        if work:
            reel.over(work[::-1])
        for index in ends.get(i, ()):
            if index in ids:
                reel.free(ids[index])
        reel.called(begin, [v.elements() for v in op.ins if v.param])
    return high.moment, ids


def _for_backward(op: Op, ids: dict[int, int]) -> list[Num]:
    """Bytes of what an operation makes for its backward even where there is none: masks, mostly,
    and so before its output.

    Left out are log-sum-exps, which attention kernels compute where a gradient is needed, and the
    states that scans keep for it.
    """
    return [value.bytes for value in op.saves
            if value.base not in ids and value not in op.outs
            and not value.name.startswith(FOR_BACKWARD)]  # fmt: skip


class ForwardPass(Struct, frozen=True, kw_only=True):
    """A forward without a graph, and its tensors' numbers: what it found, and what it leaves."""

    moment: PeakParts
    script: BlockEvents
    given: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()


def passing(
    tape: Tape, entry: Value, exit_: Value, *, given: Iterable[Value] = (),
    kept: Iterable[Value] = (),
) -> ForwardPass:  # fmt: skip
    """A forward pass under `torch.inference_mode`.

    Nothing is saved: a tensor lives until its last use. `given` is there before it beside its
    entry, `kept` outlives it beside its exit.
    """
    reel, before, after = EventRecorder(), tuple(given), tuple(kept)
    outside = (entry, *before)
    moment, ids = forward(
        reel, tape, outside, exit_, owners(tape, *outside), {v.base for v in after}, saves=LET_GO
    )
    script = BlockEvents(sizes=tuple(reel.sizes), entry=0, exit=ids[exit_.base],
                    forward=tuple(reel.events), work=tuple(reel.works))  # fmt: skip
    return ForwardPass(moment=moment, script=script, given=tuple(ids[v.index] for v in before),
                kept=tuple(ids[v.base] for v in after))  # fmt: skip
