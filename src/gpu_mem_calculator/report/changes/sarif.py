"""The runs of changed configurations as SARIF 2.1.0, for a forge's list of findings."""

from __future__ import annotations

from hashlib import sha256
from typing import Any
from urllib.parse import quote

from ... import __version__
from ...estimates.changed_runs import BAD, ChangedRun, Changes
from ...estimates.fit_verdict import FITS, SHORT, UNSURE
from ..encode import to_json

RULES = {
    SHORT: ("error", "The run does not fit into the memory of its GPU"),
    BAD: ("error", "The configuration cannot be read"),
    UNSURE: ("warning", "It cannot be told whether the run fits"),
}


def findings(changes: Changes) -> list[ChangedRun]:
    """The runs that do not certainly fit."""
    return [one for one in changes.runs if one.outcome.verdict != FITS]


def message(run: ChangedRun) -> str:
    """What is said of a run, with what would help."""
    helped = "".join(f"\n{one.words}: {one.options}" for one in run.remedies)
    begins = f"{run.name}: " if run.name else ""
    return f"{begins}{run.outcome.sentence}{helped}"


def fingerprint(run: ChangedRun) -> str:
    """What stays the same as long as the finding does."""
    said = "\0".join((run.path, run.name, run.outcome.verdict))
    return sha256(said.encode("utf-8", "surrogateescape")).hexdigest()


def sarif(changes: Changes) -> str:
    """A log with one result for each run that does not certainly fit."""
    rules = [
        {"id": name, "shortDescription": {"text": text}, "defaultConfiguration": {"level": level}}
        for name, (level, text) in RULES.items()
    ]
    driver = {"name": "gpu-mem-calc", "semanticVersion": __version__, "rules": rules}
    results = [_result(one) for one in findings(changes)]
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {"tool": {"driver": driver}, "results": results, "columnKind": "unicodeCodePoints"}
        ],
    }
    return to_json(log)


def _result(run: ChangedRun) -> dict[str, Any]:
    name = run.outcome.verdict
    place = {"uri": quote(run.path, errors="surrogateescape"), "uriBaseId": "%SRCROOT%"}
    return {
        "ruleId": name,
        "ruleIndex": list(RULES).index(name),
        "level": RULES[name][0],
        "message": {"text": message(run)},
        "locations": [
            {"physicalLocation": {"artifactLocation": place, "region": {"startLine": 1}}}
        ],
        "partialFingerprints": {"run/v1": fingerprint(run)},
    }
