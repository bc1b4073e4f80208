"""A ledger as a stream of allocations and frees: start-up, then whole steps, layer by layer.

Between two instants what is no longer alive is freed, and what has come is made; where a block
works it plays its script. So at every instant as many bytes are alive as the ledger says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..ledger.ledger import Instant, Ledger
from ..replay.stream import Stream
from .timeline import BACKWARD, FORWARD, OPTIMIZER, STARTUP
from .writer import FIRST, LATER, Phase, Writer

STEPS = 3  # the second has the optimizer's states from its start, the third finds its blocks
STARTUP_MARK = "startup"


def stream(
    ledger: Ledger, micro_batches: int, steps: int = STEPS, *, tight: bool = False
) -> Stream:
    """What an unrolled ledger's rank asks of the allocator, with a mark behind every phase.

    `tight`: on a GPU that is too small for the engine's usual way, where it has another.
    """
    usual = ledger.writer or Writer
    writer: Writer = (ledger.tight or usual if tight else usual)(ledger)
    phases = writer.order(list(_phases(ledger, micro_batches, steps)), micro_batches)
    for number, (title, names) in enumerate(phases):
        writer.first = number <= 2 * micro_batches + 1  # start-up, the first step's phases
        writer.begin(title)
        for name in names:
            writer.visit(name)
        after = next((name for _, more in phases[number + 1 :] for name in more), None)
        writer.first = writer.first and not title.endswith("opt")
        if after is not None:
            writer.leave(after, gradients=not title.endswith("opt"))
        writer.mark(title)
        if title.endswith("opt"):
            writer.zero_grad()
    if writer.elsewhere:
        everything = range(len(writer.stream.sizes))
        writer.stream.streams = [writer.elsewhere.get(tensor, 0) for tensor in everything]
    return writer.stream


def _phases(ledger: Ledger, micro_batches: int, steps: int) -> Iterator[Phase]:
    """Every phase."""
    yield STARTUP_MARK, [i.name for i in ledger.instants if i.phase == STARTUP and i.present]
    words = ((FORWARD, "fwd"), (BACKWARD, "bwd"))
    micro = [(f"a{n}.{word}", list(_names(ledger, phase, later=n > 0)))
             for n in range(micro_batches) for phase, word in words]  # fmt: skip
    end = ("opt", list(_names(ledger, OPTIMIZER, later=False)))
    for step in range(steps):
        for word, names in (*micro, end):
            yield f"s{step}.{word}", names


def _names(ledger: Ledger, phase: str, *, later: bool) -> Iterator[str]:
    """The instants of a phase in one micro-batch; those of later ones are like the first's
    where they have none of their own.
    """
    here = [i for i in ledger.instants if i.phase == phase and i.present]
    tagged = [i for i in here if i.name.startswith(LATER)]
    chosen: Iterable[Instant] = tagged if later and tagged else here
    for instant in chosen:
        name = instant.name
        if not name.startswith(FIRST) and (later or not name.startswith(LATER)):
            yield name
