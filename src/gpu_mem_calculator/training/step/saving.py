"""Saving the whole model between two steps: what the GPU gathers, what rank 0's host gets."""

from __future__ import annotations

from msgspec.structs import replace

from ...ledger.ledger import COMM, GPU, PARAM, RANK_0, Entry, Instant, Ledger
from ...ledger.num import Bytes
from ...ledger.source import Source
from ...run.phases import SAVING
from ...run.run import Run
from .between_steps import outliving

SAVES = Instant(name=SAVING, phase=SAVING, title="saving the model", where=SAVING)


def with_saving(run: Run, ledger: Ledger, gathered: Bytes, host: Bytes, source: Source) -> Ledger:
    """The ledger of a step with a save after it.

    - gathered: bytes of what is whole on the GPU at one time
    - host: bytes of the state dict on rank 0's host
    """
    if not run.saving:
        return ledger
    kept = outliving(ledger, [SAVES.name])
    live = {SAVES.name: 1}
    parts = (
        Entry("saving: whole parameters of one part", COMM, gathered, live, source, place=GPU),
        Entry("saving: whole state dict", PARAM, host, live, source, place=RANK_0),
    )
    return replace(ledger, instants=(*ledger.instants, SAVES), entries=(*kept, *parts))
