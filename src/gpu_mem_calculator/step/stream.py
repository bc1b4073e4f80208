"""A ledger as a stream of allocations and frees: start-up, then whole steps, layer by layer.

Between two instants what is no longer alive is freed, and what has come is made; where a block
works it plays its script. So at every instant as many bytes are alive as the ledger says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..ledger.ledger import Instant, Ledger
from ..replay.stream import AllocationStream
from ..run.phases import BACKWARD, FORWARD, OPTIMIZER, STARTUP
from .stream_writer import Phase, StreamWriter

STEPS = 3  # the second has the optimizer's states from its start, the third finds its blocks
STARTUP_MARK = "startup"


def stream(
    ledger: Ledger, micro_batches: int, steps: int = STEPS, *, tight: bool = False
) -> AllocationStream:
    """What an unrolled ledger's rank asks of the allocator, with a mark behind every phase.

    `tight`: on a GPU that is too small for the engine's usual way, where it has another.
    """
    usual = ledger.writer or StreamWriter
    writer: StreamWriter = (ledger.tight or usual if tight else usual)(ledger)
    phases = writer.order(list(_phases(ledger, micro_batches, steps)), micro_batches)
    for number, phase in enumerate(phases):
        steps = phase.kind == OPTIMIZER
        writer.first = number <= 2 * micro_batches + 1  # start-up, the first step's phases
        writer.begin(phase)
        for name in phase.names:
            writer.visit(name)
        after = next((name for more in phases[number + 1 :] for name in more.names), None)
        writer.first = writer.first and not steps
        if after is not None:
            writer.leave(after, gradients=not steps)
        writer.mark(phase)
        if steps:
            writer.zero_grad()
    if writer.elsewhere:
        everything = range(len(writer.stream.sizes))
        writer.stream.streams = [writer.elsewhere.get(tensor, 0) for tensor in everything]
    return writer.stream


def _phases(ledger: Ledger, micro_batches: int, steps: int) -> Iterator[Phase]:
    """Every phase."""
    starts = [i.name for i in ledger.instants if i.phase == STARTUP and i.present]
    yield Phase(STARTUP_MARK, starts, STARTUP)
    words = ((FORWARD, "fwd"), (BACKWARD, "bwd"))
    each = [Phase(f"a{n}.{word}", list(_names(ledger, kind, later=n > 0)), kind, n)
            for n in range(micro_batches) for kind, word in words]  # fmt: skip
    end = Phase("opt", list(_names(ledger, OPTIMIZER, later=False)), OPTIMIZER)
    for step in range(steps):
        for phase in (*each, end):
            yield phase._replace(title=f"s{step}.{phase.title}")


def _names(ledger: Ledger, phase: str, *, later: bool) -> Iterator[str]:
    """The instants of a phase in one micro-batch; those of later ones are like the first's
    where they have none of their own.
    """
    here = [i for i in ledger.instants if i.phase == phase and i.present]
    usual = [i for i in here if not i.step]
    tagged = [i for i in usual if i.micro_batch]
    chosen: Iterable[Instant] = tagged if later and tagged else usual
    return (i.name for i in chosen if later or not i.micro_batch)
