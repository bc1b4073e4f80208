"""The runs of changed configurations as JUnit XML, one test case each."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from ...estimates.changed_runs import BAD, Changes
from ...estimates.fit_verdict import FITS
from .sarif import message

# What XML cannot have.
REFUSED = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(changes: Changes) -> str:
    """A suite: a run that does not certainly fit is a failure, bad input an error."""
    runs = changes.runs
    errors = sum(run.outcome.verdict == BAD for run in runs)
    failures = sum(run.outcome.verdict not in (BAD, FITS) for run in runs)
    counts = {"tests": f"{len(runs)}", "failures": f"{failures}", "errors": f"{errors}"}
    suites = ET.Element("testsuites", counts)
    suite = ET.SubElement(suites, "testsuite", {"name": "gpu-mem-calc", **counts})
    for run in runs:
        said = {"classname": "GPU memory", "name": _text(run.title), "file": _text(run.path)}
        case = ET.SubElement(suite, "testcase", said)
        verdict = run.outcome.verdict
        if verdict == FITS:
            ET.SubElement(case, "system-out").text = _text(run.outcome.sentence)
            continue
        kind = "error" if verdict == BAD else "failure"
        given = {"type": verdict, "message": _text(run.outcome.sentence)}
        ET.SubElement(case, kind, given).text = _text(message(run))
    ET.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suites, encoding="unicode")


def _text(text: str) -> str:
    return REFUSED.sub("?", text)
