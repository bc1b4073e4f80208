"""Memory of the parts of a recorded module: walks for engines, and ledger entries."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ...ledger.ledger import ACT, GRAD, TEMP, Entry
from ...ledger.num import EMPTY, Bytes, Num, larger, sized
from ...ledger.source import code
from ...pytorch.autograd.events import BlockEvents
from ...pytorch.autograd.peak import PeakParts, PeakTracker
from ...pytorch.autograd.walk import BlockWalk
from ...run.record import ModuleRecord, RecordedPart
from .instants import Instants
from .workspaces import lt_entry

RECORDED = code("the module's own code, run once on fake tensors")


def part_walk(part: RecordedPart, checkpoint: bool) -> BlockWalk:
    """The walk of a part. `checkpoint`: a checkpoint holds its input until its backward ends."""
    events = _without_entry_free(part.script) if checkpoint else _with_entry_owner(part.script)
    once = _without_entry_free(part.once) if checkpoint else part.once
    entry = events.sizes[events.entry]
    saved = tuple((name, sized(size, 8)) for name, size in part.kept)
    act = sum((size for _, size in saved), EMPTY) + events.sizes[events.exit_grad]
    if checkpoint and ~part.script.entry not in part.script.backward:
        act += entry
    backward = _RecordedBackward(events, act)
    return BlockWalk(
        saved=saved,
        input_bytes=entry,
        forward=_forward_peak(events),
        transient=_forward_peak(once),
        backward=backward.first.moment,
        later=backward.later.moment,
        hooks=tuple(backward.hooks),
        after_first=backward.after_first,
        holds_input=checkpoint,
        once=once,
        script=events,
    )


def _with_entry_owner(block: BlockEvents) -> BlockEvents:
    """The same events; the part before saves the input where this one never frees it."""
    freed = ~block.entry in (*block.forward, *block.backward)
    return replace(block, entry_saved_before=not freed)


def _without_entry_free(block: BlockEvents) -> BlockEvents:
    """The same events without the free of the input, which its holder frees."""
    free = ~block.entry
    changes: dict[str, object] = {}
    for name, events in {"forward": block.forward, "backward": block.backward}.items():
        if free in events:
            at = events.index(free)
            changes[name] = (*events[:at], *events[at + 1 :])
            if name == "forward":
                changes["calls"] = tuple(_moved_call(call, at) for call in block.calls)
            else:
                changes["back_calls"] = tuple(_moved_call(call, at) for call in block.back_calls)
                changes["hooks"] = tuple(hook - (hook > at) for hook in block.hooks)
                changes["drops"] = tuple((pos - (pos > at), t) for pos, t in block.drops)
                changes["matmul"] = block.matmul - (block.matmul > at)
    return BlockEvents(**{name: getattr(block, name) for name in block.__struct_fields__} | changes)


def _moved_call(call: tuple[int, int, Num], at: int) -> tuple[int, int, Num]:
    """A call's event positions when the event at `at` is left out."""
    begin, end, elements = call
    return begin - (begin > at), end - (end > at), elements


def _forward_peak(block: BlockEvents) -> PeakParts:
    work = frozenset(block.work)
    act, temp = block.entry_bytes, EMPTY
    peak = PeakTracker(act)
    for event in block.forward:
        tensor = event if event >= 0 else ~event
        size = block.sizes[tensor] if event >= 0 else -block.sizes[tensor]
        if tensor in work:
            temp += size
        else:
            act += size
        if event >= 0:
            peak.see(act, EMPTY, temp)
    return peak.moment


class _RecordedBackward:
    """Peaks of a block's backward, counted from its events, `act` bytes of activations at first.

    - `first`: the peak of the first micro-batch, whose gradients stay; `later`: of later ones,
      whose gradients are freed when their hooks run.
    - `hooks`: for each weight, the bytes of its gradient and the activations alive at its hook.
    - `after_first`: the most activations and workspace after the first hook.
    """

    def __init__(self, block: BlockEvents, act: Bytes) -> None:
        self.first, self.later = PeakTracker(act), PeakTracker(act)
        self.hooks: list[tuple[Bytes, Bytes]] = []
        self.after_first: Bytes = EMPTY
        grads = {tensor for _, tensor in block.drops}
        work = frozenset(block.work)
        all_grads = new_grads = temp = EMPTY
        waiting = list(zip(block.hooks, block.drops, strict=False))  # a table has no hooks
        for at, event in enumerate(block.backward):
            while waiting and waiting[0][0] <= at:
                _, (_, tensor) = waiting.pop(0)
                self.hooks.append((block.sizes[tensor], act))
                new_grads -= block.sizes[tensor]
            tensor = event if event >= 0 else ~event
            size = block.sizes[tensor] if event >= 0 else -block.sizes[tensor]
            if tensor in grads:
                all_grads, new_grads = all_grads + size, new_grads + size
            elif tensor in work:
                temp += size
            else:
                act += size
            if event >= 0:
                self.first.see(act, all_grads, temp)
                self.later.see(act, new_grads, temp)
                if self.hooks:
                    self.after_first = larger(self.after_first, act + temp)
        self.hooks += [(block.sizes[tensor], act) for _, (_, tensor) in waiting]


def record_entries(record: ModuleRecord, instants: Instants) -> Iterator[Entry]:
    """Entries outside the layers: the batch, and what is made before the stack of layers."""
    working = {i.name: 1 for i in instants if i.work}
    inside = {i.name: 1 for i in instants if i.work and i.inside_forward}
    rows = (
        ("before the stack: kept for backward", working, record.kept),
        ("before the stack: named until forward ends", inside, record.held),
    )
    batch, every = sized(record.batch_bytes, 8), {i.name: 1 for i in instants}
    if record.batch_bytes:
        yield Entry("batch", ACT, batch, every, RECORDED, tensors=lambda: [batch])
    for name, live, parts in rows:
        tensors = [sized(size, 8) for _, size in parts]
        size = sum(tensors, EMPTY)
        if size:
            yield Entry(name, ACT, size, live, RECORDED, parts=parts, tensors=tensors.copy)


def bias_entries(record: ModuleRecord, instants: Instants, *, recomputes: bool) -> Iterator[Entry]:
    """Workspaces of matmuls that add a bias. `recomputes`: backward recomputes layers, and its
    thread has a workspace, too.
    """
    threads = min(record.biases + recomputes, 2) if record.biases else 0
    if threads:
        yield lt_entry(threads, instants)


def before_events(record: ModuleRecord) -> BlockEvents | None:
    """Backward events of what is before the stack; None where nothing there takes a gradient."""
    return record.before.script if record.before.script.exit_grad >= 0 else None


def table_entries(record: ModuleRecord, instants: Instants) -> Iterator[Entry]:
    """Backward of what is before the stack, as entries, where its events are not replayed."""
    block = record.before.script
    live = {i.name: 1 for i in instants if i.work == "embedding"}
    grads = sum(block.sizes[tensor] for _, tensor in block.drops)
    backward = _RecordedBackward(
        block, block.sizes[block.exit_grad] if block.exit_grad >= 0 else EMPTY
    )
    peak = backward.first.moment
    for name, kind, size in (
        ("before the stack: at work", ACT, peak.act),
        ("before the stack: gradients being computed", GRAD, grads),
        ("before the stack: kernel workspace", TEMP, peak.temp),
    ):
        if size:
            yield Entry(name=name, kind=kind, bytes=size, live=live, source=RECORDED)
