"""A tape run forward: the order in which its tensors are allocated and freed, and its peak."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from ...ledger.num import EMPTY, Bytes, nothing
from .events import BlockEvents, EventRecorder
from .peak import PeakParts, PeakTracker
from .tape import Op, Tape, Value

ONLY_WITH_GRADIENTS = ("attn.logsumexp", "ssm.")  # names of tensors that inference does not make
# What forward does with the tensors that an operation makes for its backward alone: leave them
# out, keep them, or allocate and free them with the operation.
ForBackward: TypeAlias = Literal["skip", "keep", "free"]


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
    for_backward: ForBackward,
    stop: int = -1,
    given: Mapping[int, int] | None = None,
    seen: PeakTracker | None = None,
) -> tuple[PeakParts, dict[int, int]]:
    """The peak of a forward pass, and the number of each storage in `recorder`.

    `outside` is allocated before it: the block's input, and all else that the tape reads. `stays`
    and the output are alive after it. `for_backward`: see above. `stop`: the index of the operation
    at which it ends, once that operation has saved what its backward needs; its output, and that of
    the block, is not made then. `given`: storages that are alive already, with their numbers, in
    place of `outside`; operations that made them do not run again. `seen`: gets the instants.
    """
    ends = _last_uses(tape, exit_, {index for index in owners if index not in stays})
    if given is None:
        ids = {value.index: recorder.number(value.bytes) for value in outside}
        recorder.act = EMPTY
        for value in outside:
            recorder.act = recorder.act + value.bytes
    else:
        ids = dict(given)
    peak = seen or PeakTracker(recorder.act)
    for i, op in enumerate(tape.ops):
        if i == stop and not op.saves_late and all(value.base in ids for value in op.saves):
            recorder.record_call(len(recorder.events), [v.elements() for v in op.ins if v.param])
            break  # inputs are saved before the kernel runs, results after it
        again = given is not None and any(value.index in given for value in op.outs)
        masks = _made_for_backward(op, ids, stays) if for_backward == "free" and op.saves else []
        temp = EMPTY if again else op.temp
        pieces = () if nothing(temp) else op.pieces
        begin = len(recorder.events)
        work = recorder.work((*masks, *(() if op.inside else pieces)))
        made = [v for v in op.outs if v.base == v.index and v.index not in ids]
        if for_backward != "skip":
            more = [v for v in op.saves if v.base in stays and v.base not in ids and v not in made]
            made = [*more, *made] if op.mask_first else [*made, *more]
        for value in made:
            ids[value.index] = recorder.make(value.bytes, value.name)
        if op.matmul and recorder.forward_matmul < 0:
            recorder.forward_matmul = len(recorder.events)
        work += recorder.work(pieces if op.inside else ())
        peak.see(recorder.act, EMPTY, sum(masks, temp) if masks else temp)
        if work:
            recorder.over(work[::-1])
        for index in ends.get(i, ()):
            if index in ids:
                recorder.free(ids[index])
        recorder.record_call(begin, [v.elements() for v in op.ins if v.param])
        if i == stop:
            break
    if stop >= 0:
        _free_rest(recorder, ids, owners, stays)
        ids[exit_.base] = recorder.number(EMPTY)
    return peak.moment, ids


def _free_rest(
    recorder: EventRecorder, ids: dict[int, int], owners: dict[int, Value], stays: set[int]
) -> None:
    """Free what is alive and does not stay, as an exception does that ends a forward."""
    freed = {~event for event in recorder.events if event < 0}
    for index, tensor in ids.items():
        if index in owners and index not in stays and tensor not in freed:
            recorder.free(tensor)


def _last_uses(tape: Tape, exit_: Value, storages: set[int]) -> dict[int, list[int]]:
    """For the index of each operation, those of `storages` that it uses last; never the output."""
    last: dict[int, int] = {}
    for i, op in enumerate(tape.ops):
        for value in (*op.outs, *op.ins):
            last[value.base] = i
    last |= tape.freed
    last.pop(exit_.base, None)
    ends: dict[int, list[int]] = {}
    for index, i in last.items():
        if index in storages:
            ends.setdefault(i, []).append(index)
    return ends


def _made_for_backward(op: Op, ids: dict[int, int], stays: set[int]) -> list[Bytes]:
    """Bytes of each tensor that an operation makes for its backward even where there is none:
    mostly masks, which it allocates before its output.

    Left out are log-sum-exps, which attention kernels compute where a gradient is needed, and the
    states that scans keep for it.
    """
    return [
        value.bytes
        for value in op.saves
        if value.base not in ids
        and value.base not in stays
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
        for_backward="free",
    )
    events = BlockEvents(
        sizes=tuple(recorder.sizes),
        entry=0,
        exit=ids[exit_.base],
        forward=tuple(recorder.events),
        work=tuple(recorder.works),
        names=tuple(recorder.names),
    )
    return ForwardPass(
        moment=peak,
        script=events,
        given=tuple(ids[v.index] for v in before),
        kept=tuple(ids[v.base] for v in after),
    )
