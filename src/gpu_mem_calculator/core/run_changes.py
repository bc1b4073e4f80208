"""What if: changes of a run worth trying, each tried out with the ledger alone.

A change is settings in `--set` notation, laid over the run by `with_settings`. A value of null
takes a key away: `read` has a key that is null for one that is not there, so that a change of
engine can leave out what the new one does not have. (`training.lora=null` takes the adapter away;
`training.lora.r=null` only its rank, which is then the default.)
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from ..ledger.units import GIB
from .calculator import STEP, Estimate, full_estimate
from .change_candidates import NODES, Candidate, further, savings, wanted
from .errors import InputError
from .models import MemoryResult
from .runfile import read, with_settings
from .serving_capacity import changed, what_ifs

MOST_SAVING, MOST_WANTED = 12, 2


class TrainingChange(Struct, frozen=True, kw_only=True):
    """A change, and the run with it: what a card must have, what that saves, whether it fits.

    `saves_bytes` is negative where the change takes more.
    """

    title: str
    settings: tuple[str, ...]
    saves_bytes: int
    total_bytes: int
    fits: bool
    cost: str = ""


def all_changes(estimate: Estimate) -> list[dict[str, Any]]:
    """What to try, whatever the run; a server's changes say what its cache then has room for."""
    if estimate.serves:
        return list(_served_changes(estimate))
    found: list[dict[str, Any]] = msgspec.to_builtins(changes(estimate))
    return found


def _served_changes(estimate: Estimate) -> Iterator[dict[str, Any]]:
    """`what_ifs`; nodes follow from the number of GPUs, as it has them."""
    given, file = estimate.result.run, read(estimate.result.run)
    now = changed(file, "", ())
    nodes = tuple(f"hardware.{k}=null" for k in NODES if k in given.get("hardware", {}))
    for change in what_ifs(file):
        yield {
            "title": change.title, "settings": [*change.setting, *nodes],
            "saves_bytes": now.device_bytes - change.device_bytes,
            "total_bytes": change.device_bytes, "fits": change.fits, "cost": "",
            "kv_tokens": change.kv_tokens, "max_concurrency": change.max_concurrency,
        }  # fmt: skip


def changes(estimate: Estimate) -> list[TrainingChange]:
    """Changes of a training run, by the ledger alone: those that fit first, by what they save.

    Most of them save a hundredth at least; a few take more, and are what people want where there
    is room. What is set already, changes nothing or is refused is left out.
    """
    if estimate.replayed is not None:
        estimate = full_estimate(estimate.result.run, replay=False)
    needs = by_ledger(estimate)
    saving = _each(estimate, (*savings(estimate), *further(estimate)))
    taking = _each(estimate, wanted(estimate))
    saving = [one for one in saving if one.saves_bytes > needs // 100]
    taking = [one for one in taking if one.saves_bytes < 0]
    best = sorted(saving, key=_usefulness)[:MOST_SAVING]
    return sorted((*best, *taking[:MOST_WANTED]), key=_usefulness)


def _usefulness(change: TrainingChange) -> tuple[bool, int]:
    return not change.fits, -change.saves_bytes


def _each(estimate: Estimate, candidates: Iterator[Candidate] | tuple[Candidate, ...]
          ) -> list[TrainingChange]:  # fmt: skip
    """Each candidate tried out, without the settings that the run has already."""
    found: dict[tuple[str, ...], TrainingChange] = {}
    for one in candidates:
        settings = _not_yet(estimate.result.run, one.settings)
        if settings and settings not in found:
            made = tried(estimate, Candidate(one.title, settings, one.cost))
            if made is not None:
                found[settings] = made
    return list(found.values())


def _not_yet(run: dict[str, Any], settings: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(one for one in settings if with_settings(copy.deepcopy(run), (one,)) != run)


def tried(
    estimate: Estimate, candidate: Candidate, *, replay: bool = False, needs: int | None = None
) -> TrainingChange | None:
    """A change tried out; nothing where it is refused. `needs`: what the run takes without it."""
    result = _again(estimate, candidate.settings, replay=replay)
    if result is None:
        return None
    total = round(result.total_memory_per_gpu_gb * GIB)
    now = by_ledger(estimate) if needs is None else needs
    return TrainingChange(
        title=candidate.title, settings=candidate.settings, saves_bytes=now - total,
        total_bytes=total, fits=result.fits_on_gpu, cost=candidate.cost,
    )  # fmt: skip


def by_ledger(estimate: Estimate) -> int:
    """What the card must have by the ledger alone."""
    return int(estimate.ledger.peak(phases=STEP)) + estimate.result.outside_torch_bytes


def _again(estimate: Estimate, settings: tuple[str, ...], *, replay: bool) -> MemoryResult | None:
    """The result after a change, or nothing where the engine refuses it."""
    data = with_settings(copy.deepcopy(estimate.result.run), settings)
    try:
        return full_estimate(data, replay=replay).result
    except InputError:
        return None
