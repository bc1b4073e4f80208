"""What the parts of a module cost, from its record: walks for engines, and ledger entries."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ..autograd.events import BlockEvents
from ..autograd.peak import PeakParts, PeakTracker
from ..autograd.walk import BlockWalk
from ..ledger.ledger import ACT, GRAD, TEMP, Entry
from ..ledger.num import Num
from ..ledger.source import code
from ..run.record import ModuleRecord, RecordedPart
from .instants import StepInstant
from .workspaces import lt_entry

RECORDED = code("the module's own code, run once on fake tensors")


def part_walk(part: RecordedPart, checkpoint: bool) -> BlockWalk:
    """What a part costs. `checkpoint`: it holds the part's input until the part is done."""
    script = _holding(part.script) if checkpoint else part.script
    once = _holding(part.once) if checkpoint else part.once
    entry = script.sizes[script.entry]
    kept = tuple(part.kept)
    act = sum(size for _, size in kept) + script.sizes[script.exit_grad]
    act += entry if checkpoint and not _keeps_entry(part.script) else 0
    high = _RecordedBackward(script, act)
    return BlockWalk(
        saved=kept, input_bytes=entry, forward=_forward(script), transient=_forward(once),
        backward=high.high.moment, later=high.later.moment, hooks=tuple(high.hooks),
        after_first=high.after, holds_input=checkpoint, once=once, script=script,
    )  # fmt: skip


def _keeps_entry(script: BlockEvents) -> bool:
    return ~script.entry in script.backward


def _holding(script: BlockEvents) -> BlockEvents:
    """The same, but for its input, which is let go by who holds it."""
    free = ~script.entry
    cut = {"forward": script.forward, "backward": script.backward}
    moved: dict[str, object] = {}
    for name, events in cut.items():
        if free in events:
            at = events.index(free)
            moved[name] = (*events[:at], *events[at + 1 :])
            if name == "forward":
                moved["calls"] = tuple(_earlier(call, at) for call in script.calls)
            else:
                moved["back_calls"] = tuple(_earlier(call, at) for call in script.back_calls)
                moved["hooks"] = tuple(hook - (hook > at) for hook in script.hooks)
                moved["drops"] = tuple((pos - (pos > at), t) for pos, t in script.drops)
                moved["matmul"] = script.matmul - (script.matmul > at)
    return BlockEvents(**{name: getattr(script, name) for name in script.__struct_fields__} | moved)


def _earlier(call: tuple[int, int, Num], at: int) -> tuple[int, int, Num]:
    begin, end, elements = call
    return begin - (begin > at), end - (end > at), elements


def _forward(script: BlockEvents) -> PeakParts:
    work = frozenset(script.work)
    act, temp = script.sizes[script.entry], 0
    high = PeakTracker(act)
    for event in script.forward:
        tensor = event if event >= 0 else ~event
        size = script.sizes[tensor] if event >= 0 else -script.sizes[tensor]
        if tensor in work:
            temp += size
        else:
            act += size
        if event >= 0:
            high.see(act, 0, temp)
    return high.moment


class _RecordedBackward:
    """A script's backward, counted: activations, weights' gradients, workspace."""

    def __init__(self, script: BlockEvents, act: Num) -> None:
        self.high, self.later = PeakTracker(act), PeakTracker(act)
        self.hooks: list[tuple[Num, Num]] = []
        self.after: Num = 0
        grads = {tensor for _, tensor in script.drops}
        work = frozenset(script.work)
        made = new = temp = 0
        waiting = list(zip(script.hooks, script.drops, strict=False))  # a table has no hooks
        for at, event in enumerate(script.backward):
            while waiting and waiting[0][0] <= at:
                _, (_, tensor) = waiting.pop(0)
                self.hooks.append((script.sizes[tensor], act))
                new -= script.sizes[tensor]
            tensor = event if event >= 0 else ~event
            size = script.sizes[tensor] if event >= 0 else -script.sizes[tensor]
            if tensor in grads:
                made, new = made + size, new + size
            elif tensor in work:
                temp += size
            else:
                act += size
            if event >= 0:
                self.high.see(act, made, temp)
                self.later.see(act, new, temp)
                if self.hooks:
                    self.after = max(self.after, act + temp)
        self.hooks += [(script.sizes[tensor], act) for _, (_, tensor) in waiting]


def record_entries(record: ModuleRecord, beats: tuple[StepInstant, ...]) -> Iterator[Entry]:
    """What the module has beside its layers: the batch, and what is made before the stack."""
    working = {b.name: 1 for b in beats if b.work}
    inside = {b.name: 1 for b in beats if b.work and b.inside_forward}
    rows = (
        ("batch", record.batch_bytes, {b.name: 1 for b in beats}, ()),
        ("before the stack: kept for backward", sum(n for _, n in record.kept), working,
         record.kept),
        ("before the stack: named until forward ends", sum(n for _, n in record.held), inside,
         record.held),
    )  # fmt: skip
    for name, size, live, parts in rows:
        if size:
            yield Entry(name=name, kind=ACT, bytes=size, live=live, source=RECORDED, parts=parts,
                        tensors=partial(_bytes, parts or ((name, size),)))  # fmt: skip


def bias_entries(
    record: ModuleRecord, beats: tuple[StepInstant, ...], *, again: bool
) -> Iterator[Entry]:
    """Workspaces of matmuls that add a bias. `again`: layers run forward in backward, too, whose
    thread has one of its own.
    """
    biases = min(record.biases + again, 2) if record.biases else 0
    if biases:
        yield lt_entry(biases, beats)


def _bytes(parts: tuple[tuple[str, int], ...]) -> list[int]:
    return [size for _, size in parts]


def table_script(record: ModuleRecord) -> BlockEvents | None:
    """Backward of what stands before the stack; none where nothing there takes a gradient."""
    return record.before.script if record.before.script.exit_grad >= 0 else None


def table_entries(record: ModuleRecord, beats: tuple[StepInstant, ...]) -> Iterator[Entry]:
    """Backward of what stands before the stack, where it is not played."""
    script = record.before.script
    live = {b.name: 1 for b in beats if b.work == "embedding"}
    grads = sum(script.sizes[tensor] for _, tensor in script.drops)
    work = _RecordedBackward(script, script.sizes[script.exit_grad] if script.exit_grad >= 0 else 0)
    high = work.high.moment
    for name, kind, size in (
        ("before the stack: at work", ACT, high.act),
        ("before the stack: gradients being made", GRAD, grads),
        ("before the stack: kernel workspace", TEMP, high.temp),
    ):
        if size:
            yield Entry(name=name, kind=kind, bytes=size, live=live, source=RECORDED)
