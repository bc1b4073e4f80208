"""Writes the log of deploy/measure.md from deploy/measured.jsonl, with the estimate of today.

python docs/measured_log.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from gpu_mem_calculator.lab.measure.cases_file import MeasureCase
from gpu_mem_calculator.report.lines import plain
from gpu_mem_calculator.report.measurement import CaseResult, measurement_report

FOLDER = Path(__file__).parent / "deploy"
PAGE = FOLDER / "measure.md"
RUN = "pod-fsdp2-llama3-70b-w64"
MARKS = re.compile(r"<!-- log -->\n.*?<!-- end -->", re.DOTALL)


def log() -> str:
    """What `measure` prints of the measured run."""
    lines = (FOLDER / "measured.jsonl").read_text("utf-8").splitlines()
    row = next(one for one in map(json.loads, lines) if one["id"] == RUN)
    case = MeasureCase(id=RUN, config=row["config"])
    return plain(measurement_report(CaseResult(case=case, row=row), None)).strip()


def page(text: str) -> str:
    """The page with its log made anew."""
    return MARKS.sub(lambda _: f"<!-- log -->\n```\n{log()}\n```\n<!-- end -->", text, count=1)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
