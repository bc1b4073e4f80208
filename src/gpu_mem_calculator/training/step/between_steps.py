"""What is alive between two steps, where something else runs, such as saving the whole model: what
the GPU gathers for it, and what rank 0's host gets.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from ...ledger.ledger import COMM, CPU, GPU, GRAD, PARAM, RANK_0, TEMP, Entry, Instant, Ledger
from ...ledger.num import EMPTY, Bytes
from ...ledger.source import Source, code
from ...run.phases import FORWARD, OPTIMIZER, SAVING, STARTUP
from ...run.run import FULL_DICT, FULL_DICT_ON_GPUS, Run


def resting(ledger: Ledger) -> str:
    """The name of the instant at which a step has ended."""
    return next(i.name for i in ledger.instants if i.phase == OPTIMIZER and not i.step)


def outliving(ledger: Ledger, names: Iterable[str]) -> list[Entry]:
    """The entries of a ledger; those that outlive a step are alive at the instants of these names
    as well: neither what the optimizer needs, nor gradients that the next forward does not find.
    """
    end = resting(ledger)
    begins = next(
        i.name
        for i in ledger.instants
        if i.phase == FORWARD and not i.step and not i.micro_batch and i.present
    )
    return [
        _also_at(list(names), entry, begins if entry.kind == GRAD else end)
        for entry in ledger.entries
    ]


def _also_at(names: list[str], entry: Entry, end: str) -> Entry:
    copies = entry.live.get(end, 0)
    if entry.kind == TEMP or (isinstance(copies, int) and not copies):
        return entry
    return replace(entry, live={**entry.live, **dict.fromkeys(names, copies)})


AVERAGED = code("torch 2.13 optim/swa_utils.py AveragedModel: a deep copy of the model")
SAVES = Instant(name=SAVING, phase=SAVING, title="saving the model", where=SAVING)


def with_saving(run: Run, ledger: Ledger, gathered: Bytes, host: Bytes, source: Source) -> Ledger:
    """The ledger of a step with a save after it.

    - gathered: bytes of what is whole on the GPU at one time
    - host: bytes of the state dict on rank 0's host
    """
    if run.saving not in (FULL_DICT, FULL_DICT_ON_GPUS):
        return ledger
    kept = outliving(ledger, [SAVES.name])
    live = {SAVES.name: 1}
    parts = (
        Entry("saving: whole parameters of one part", COMM, gathered, live, source, place=GPU),
        Entry("saving: whole state dict", PARAM, host, live, source, place=RANK_0),
    )
    return replace(ledger, instants=(*ledger.instants, SAVES), entries=(*kept, *parts))


def with_ema(run: Run, ledger: Ledger) -> Ledger:
    """The ledger of a step with an averaged copy of a rank's weights, made after start-up."""
    if not run.ema:
        return ledger
    end = resting(ledger)
    own = [e for e in ledger.entries if e.kind == PARAM and e.live.get(end)]
    copies = [(e, e.live[end]) for e in own]

    def tensors() -> list[Bytes]:
        each = ((list(e.tensors()) if e.tensors else [e.bytes], int(n)) for e, n in copies)
        return [size for sizes, n in each for size in sizes * n]

    begun = [i.name for i in ledger.instants if i.phase == STARTUP][-1:]
    live = dict.fromkeys([*begun, *(i.name for i in ledger.instants if i.phase != STARTUP)], 1)
    size = sum((e.bytes * n for e, n in copies), EMPTY)
    place = CPU if run.ema == "cpu" else GPU
    average = Entry(
        "averaged copy of the parameters", PARAM, size, live, AVERAGED, place=place, tensors=tensors
    )
    return replace(ledger, entries=(*ledger.entries, average))
