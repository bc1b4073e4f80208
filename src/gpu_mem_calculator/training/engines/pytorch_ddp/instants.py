"""Instants that DDP adds to a step: the second micro-batch of the first step."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from ....ledger.ledger import COMM, OLD_BUCKETS, OPTIM, Entry, Ledger
from ....ledger.num import holds, sized
from ....ledger.source import measured
from ....run.phases import OPTIMIZER
from ....run.run import Run
from ...step.weights import trained_total

OLD_CODE = measured(
    "NVIDIA H200, torch 2.11.0, NCCL: in 10 of 10 accumulating DDP runs until "
    "the loss of the second micro-batch, in 5 through the first step"
)


def with_first_step(run: Run, ledger: Ledger, bits: int) -> Ledger:
    """The ledger with the second micro-batch of the first step: no optimizer states yet, but two
    sets of buckets. `bits`: of a gradient.

    DDP makes its buckets anew in the second forward. The tensors of a collective are freed with the
    first collective that is enqueued after NCCL's watchdog has run, every 100 ms (torch 2.11
    ProcessGroupNCCL.cpp workEnqueue, shelvesToUnstash_; seen in an H200's allocator history): as
    a rule not before that micro-batch is over, and where the step then ends, not before that.
    """
    updates = [i for i in ledger.instants if i.phase == OPTIMIZER]
    later = [i for i in ledger.instants if i.micro_batch]
    if not later:
        return ledger
    step, names = ({i.name: i.in_first_step().name for i in some} for some in (updates, later))
    several = holds(run.mesh.dp > 1)
    ends = several * holds(run.micro_batches == 2)
    first_step = tuple(
        i.in_first_step(
            title=f"{i.title}, first step", present=i.present * (several if i.micro_batch else ends)
        )
        for i in ledger.instants
        if i.name in names or i.name in step
    )
    entries = [_also_at(step if e.kind == OPTIM else names | step, e) for e in ledger.entries]
    live = dict.fromkeys((*names.values(), *step.values()), 1)
    name = "gradient buckets of the first micro-batch"
    old = Entry(name, COMM, sized(trained_total(run), bits), live, OLD_CODE, role=OLD_BUCKETS)
    return replace(ledger, instants=(*ledger.instants, *first_step), entries=(*entries, old))


def _also_at(names: Mapping[str, str], entry: Entry) -> Entry:
    """The entry with as many copies at each new name as at the old one."""
    more = {new: entry.live[name] for name, new in names.items() if name in entry.live}
    return replace(entry, live={**entry.live, **more})
