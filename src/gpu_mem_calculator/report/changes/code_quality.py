"""The runs of changed configurations as GitLab's Code Quality report."""

from __future__ import annotations

from ...estimates.changed_runs import BAD, Changes
from ...estimates.fit_verdict import SHORT, UNSURE
from ..encode import to_json
from .sarif import findings, fingerprint, message

SEVERITIES = {SHORT: "critical", BAD: "major", UNSURE: "minor"}


def code_quality(changes: Changes) -> str:
    """A list with one entry for each run that does not certainly fit."""
    return to_json(
        [
            {
                "description": message(run).replace("\n", "; "),
                "check_name": run.outcome.verdict,
                "fingerprint": fingerprint(run),
                "severity": SEVERITIES[run.outcome.verdict],
                "location": {"path": run.path, "lines": {"begin": 1}},
            }
            for run in findings(changes)
        ]
    )
