"""Changes of a run that are worth trying.

What a change saves is estimated by the ledger; whether the run then fits, by a replay.

A change is a list of settings in `--set` notation, which `with_settings` applies to the run. A
value of null removes a key, because `read` ignores keys that are null; a change of engine thereby
removes options that the new engine does not have. (`training.lora=null` removes the adapter;
`training.lora.r=null` only its rank, which is then the default.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ...estimates.bounds import bounded_verdict
from ...estimates.calculator import (
    STEP,
    Estimate,
    full_estimate,
    stage_ledgers,
    verdict,
    verdict_by_ledger,
)
from ...estimates.fit_verdict import FITS, SHORT, UNSURE
from ...ledger.units import GIB
from ...runfile.read import with_settings
from ...runfile.text.errors import InputError
from .change_candidates import NODES, Candidate, further_savings, savings, uses_of_free_memory

MOST_SAVING, MOST_WANTED = 12, 2


class TrainingChange(Struct, frozen=True, kw_only=True):
    """A change, and the run with it: what a card must have by the ledger, what that saves, and its
    verdict.

    `saves_bytes` is negative where the change takes more. The verdict is `cannot_tell` where
    `replayed_change` is still to decide, or where something that is not modelled does.
    """

    title: str
    settings: tuple[str, ...]
    saves_bytes: int
    total_bytes: int
    fits: bool
    verdict: str
    cost: str = ""


def all_changes(estimate: Estimate) -> list[dict[str, Any]]:
    """Changes of a training or an inference run as plain data.

    Changes of an inference run also have the tokens and sequences that its cache then holds.
    """
    if estimate.serves:
        return list(_serving_changes(estimate))
    rows: list[dict[str, Any]] = msgspec.to_builtins(changes(estimate))
    return rows


def _serving_changes(estimate: Estimate) -> Iterator[dict[str, Any]]:
    """The changes of `what_ifs`; keys for nodes are removed, since they follow from the GPUs."""
    from ..serving.changes import Server, taken, what_ifs

    given = estimate.result.run
    now, _, _ = taken(estimate.result)
    nodes = tuple(f"hardware.{k}=null" for k in NODES if k in given.get("hardware", {}))
    for change in what_ifs(Server.of(estimate)):
        yield {
            "title": change.title,
            "settings": [*dict.fromkeys((*change.setting, *nodes))],
            "saves_bytes": now - change.device_bytes,
            "total_bytes": change.device_bytes,
            "fits": change.fits,
            "verdict": change.verdict,
            "cost": "",
            "kv_tokens": change.kv_tokens,
            "max_concurrency": change.max_concurrency,
            "users": change.users,
            "context": change.context,
        }


def changes(estimate: Estimate) -> list[TrainingChange]:
    """Changes of a training run: those that fit first, then by bytes saved.

    Up to 12 of them save more than 1 %. Up to 2 take more memory, and are wanted where some is
    free. Left out are changes that the run has already, that change nothing or that are refused.
    """
    if estimate.replayed is not None:
        estimate = full_estimate(estimate.result.run, replay=False)
    needs = ledger_bytes(estimate)
    saving = _try_all(estimate, (*savings(estimate), *further_savings(estimate)))
    taking = _try_all(estimate, uses_of_free_memory(estimate))
    saving = [one for one in saving if one.saves_bytes > needs // 100]
    taking = [one for one in taking if one.saves_bytes < 0]
    best = sorted(saving, key=_usefulness)[:MOST_SAVING]
    replayed = [replayed_change(estimate, one) for one in (*best, *taking[:MOST_WANTED])]
    return sorted(replayed, key=_usefulness)


def _usefulness(change: TrainingChange) -> tuple[int, int]:
    return (FITS, UNSURE, SHORT).index(change.verdict), -change.saves_bytes


def _try_all(
    estimate: Estimate, candidates: Iterator[Candidate] | tuple[Candidate, ...]
) -> list[TrainingChange]:
    """The change that each candidate makes, without settings that the run has already."""
    tried: dict[tuple[str, ...], TrainingChange] = {}
    for candidate in candidates:
        settings = _new_settings(estimate.result.run, candidate.settings)
        if settings and settings not in tried:
            change = try_change(estimate, Candidate(candidate.title, settings, candidate.cost))
            if change is not None:
                tried[settings] = change
    return list(tried.values())


def _new_settings(run: dict[str, Any], settings: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(one for one in settings if with_settings(run, (one,)) != run)


def try_change(estimate: Estimate, candidate: Candidate) -> TrainingChange | None:
    """Estimate the run with a candidate's settings by the ledger; None where they are refused."""
    try:
        result = full_estimate(_changed(estimate, candidate.settings), replay=False).result
    except InputError:
        return None
    total = round(result.total_memory_per_gpu_gb * GIB)
    word = bounded_verdict(verdict_by_ledger(result), result.headroom_bytes, result.limits)
    return TrainingChange(
        title=candidate.title,
        settings=candidate.settings,
        saves_bytes=ledger_bytes(estimate) - total,
        total_bytes=total,
        fits=word == FITS,
        verdict=word,
        cost=candidate.cost,
    )


def replayed_change(estimate: Estimate, change: TrainingChange) -> TrainingChange:
    """A change with its verdict, which is that of a replay where the ledger leaves it open."""
    if change.verdict != UNSURE:
        return change
    word = verdict(_changed(estimate, change.settings))
    return replace(change, fits=word == FITS, verdict=word)


def ledger_bytes(estimate: Estimate) -> int:
    """Bytes that the card must have by the ledger alone, with what is outside torch."""
    if estimate.replayed is not None:  # its ledger has the rounding of blocks
        highest = max(stage_ledgers(estimate.resolved).peaks(STEP))
        return highest + estimate.result.outside_torch_bytes
    return int(estimate.ledger.peak(phases=STEP)) + estimate.result.outside_torch_bytes


def _changed(estimate: Estimate, settings: tuple[str, ...]) -> dict[str, Any]:
    """The run file with the settings."""
    data: dict[str, Any] = with_settings(estimate.result.run, settings)
    return data
