"""The changes that the page offers beside an estimate, as data."""

from __future__ import annotations

from typing import Any

from ..advice.serving.changes import Server, taken
from ..advice.serving.server_remedies import remedies as serving_remedies
from ..advice.training.remedies import remedies
from ..advice.training.run_changes import all_changes, ledger_bytes
from ..estimates.calculator import Estimate
from ..estimates.fit_verdict import FITS, UNSURE

Change = dict[str, Any]
SERVER_FIGURES = ["fits", "verdict", "cost", "kv_tokens", "max_concurrency", "users", "context"]


def offered_changes(estimate: Estimate) -> list[Change]:
    """Where the run fits, single changes; else the sets that make it fit, and what else saves."""
    singles = all_changes(estimate)
    if estimate.result.figures_fit:
        return singles
    sets = _serving_sets(estimate) if estimate.served else _training_sets(estimate)
    known = {tuple(one["settings"]) for one in sets}
    helpful = (one for one in singles if one["saves_bytes"] > 0 and not estimate.served)
    return [*sets, *(one for one in helpful if tuple(one["settings"]) not in known)]


def _training_sets(estimate: Estimate) -> list[Change]:
    """The smallest sets of changes with which a training run fits."""
    now = ledger_bytes(estimate)
    return [
        {
            "title": " + ".join(one.changes),
            "settings": list(one.settings),
            "saves_bytes": one.saves_bytes,
            "total_bytes": now - one.saves_bytes,
            "fits": one.certain,
            "verdict": FITS if one.certain else UNSURE,
            "cost": one.cost,
        }
        for one in remedies(estimate)
    ]


def _serving_sets(estimate: Estimate) -> list[Change]:
    """The smallest sets of changes with which a server fits."""
    now, _, _ = taken(estimate.result)
    return [
        {
            "title": one.title,
            "settings": list(one.setting),
            "saves_bytes": now - one.device_bytes,
            "total_bytes": one.device_bytes,
            **{key: getattr(one, key) for key in SERVER_FIGURES},
        }
        for one in serving_remedies(Server.of(estimate))
    ]
