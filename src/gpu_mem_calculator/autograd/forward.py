"""A tape run forward: the order in which its tensors are allocated and freed, and its peak."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from ..ledger.num import EMPTY, Bytes, nothing
from .events import BlockEvents, EventRecorder
from .peak import PeakParts, PeakTracker
from .tape import Op, Tape, Value

ONLY_WITH_GRADIENTS = ("attn.logsumexp", "ssm.")  # names of tensors that inference does not make
# What forward does with the tensors that an operation makes for its backward alone: leave them
# out, keep them, or allocate and free them with the operation.
SKIP, KEEP, FREE = "skip", "keep", "free"


def storage_owners(tape: Tape, *outside: Value) -> dict[int, Value]:
    """The value that owns each storage, by its index; views are left out."""
    owners = {value.index: value for value in outside}
    for op in tape.ops:
        for value in (*op.outs, *op.saves):
            if value.base == value.index:
                owners[value.index] = value
    return owners


def run_forward(
    recorder: EventRecorder,
    tape: Tape,
    outside: tuple[Value, ...],
    exit_: Value,
    owners: dict[int, Value],
    stays: set[int],
    *,
    for_backward: str,
) -> tuple[PeakParts, dict[int, int]]:
    """The peak of a forward pass, and the number of each storage in `recorder`.

    `outside` is allocated before it: the block's input, and all else that the tape reads. `stays`
    and the output are alive after it. `for_backward`: SKIP, KEEP or FREE.
    """
    ends = _last_uses(tape, exit_, {index for index in owners if index not in stays})
    ids = {value.index: recorder.number(value.bytes) for value in outside}
    recorder.act = EMPTY
    for value in outside:
        recorder.act = recorder.act + value.bytes
    peak = PeakTracker(recorder.act)
    for i, op in enumerate(tape.ops):
        masks = _made_for_backward(op, ids) if for_backward == FREE and op.saves else []
        pieces = () if nothing(op.temp) else op.pieces
        begin = len(recorder.events)
        work = recorder.work((*masks, *(() if op.inside else pieces)))
        for value in op.outs:
            if value.base == value.index:
                ids[value.index] = recorder.make(value.bytes)
        for value in op.saves if for_backward == KEEP else ():
            if value.base not in ids and value.base in stays:
                ids[value.base] = recorder.make(value.bytes)
        work += recorder.work(pieces if op.inside else ())
        peak.see(recorder.act, EMPTY, sum(masks, op.temp) if masks else op.temp)
        if work:
            recorder.over(work[::-1])
        for index in ends.get(i, ()):
            if index in ids:
                recorder.free(ids[index])
        recorder.record_call(begin, [v.elements() for v in op.ins if v.param])
    return peak.moment, ids


def _last_uses(tape: Tape, exit_: Value, storages: set[int]) -> dict[int, list[int]]:
    """For the index of each operation, those of `storages` that it uses last; never the output."""
    last: dict[int, int] = {}
    for i, op in enumerate(tape.ops):
        for value in (*op.outs, *op.ins):
            last[value.base] = i
    last.pop(exit_.base, None)
    ends: dict[int, list[int]] = {}
    for index, i in last.items():
        if index in storages:
            ends.setdefault(i, []).append(index)
    return ends


def _made_for_backward(op: Op, ids: dict[int, int]) -> list[Bytes]:
    """Bytes of each tensor that an operation makes for its backward even where there is none:
    mostly masks, which it allocates before its output.

    Left out are log-sum-exps, which attention kernels compute where a gradient is needed, and the
    states that scans keep for it.
    """
    return [
        value.bytes
        for value in op.saves
        if value.base not in ids
        and value not in op.outs
        and not value.name.startswith(ONLY_WITH_GRADIENTS)
    ]


class ForwardPass(Struct, frozen=True, kw_only=True):
    """A forward pass without autograd.

    - moment: its peak
    - script: its events
    - given: numbers of the tensors that it finds allocated, besides its input
    - kept: numbers of the tensors that outlive it, besides its output
    """

    moment: PeakParts
    script: BlockEvents
    given: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()


def inference_pass(
    tape: Tape,
    entry: Value,
    exit_: Value,
    *,
    given: Iterable[Value] = (),
    kept: Iterable[Value] = (),
) -> ForwardPass:
    """A forward pass under `torch.inference_mode`: a tensor lives until its last use.

    `given` is allocated before it, besides `entry`; `kept` outlives it, besides `exit_`.
    """
    recorder, before, after = EventRecorder(), tuple(given), tuple(kept)
    outside = (entry, *before)
    peak, ids = run_forward(
        recorder,
        tape,
        outside,
        exit_,
        storage_owners(tape, *outside),
        {v.base for v in after},
        for_backward=FREE,
    )
    events = BlockEvents(
        sizes=tuple(recorder.sizes),
        entry=0,
        exit=ids[exit_.base],
        forward=tuple(recorder.events),
        work=tuple(recorder.works),
    )
    return ForwardPass(
        moment=peak,
        script=events,
        given=tuple(ids[v.index] for v in before),
        kept=tuple(ids[v.base] for v in after),
    )
