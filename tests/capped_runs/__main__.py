"""Write the drawn cases, and the measured runs to calibrate with: `python -m tests.capped_runs`.

`cases.jsonl` is the draw of a seed, made before any of its cases was run. `seen.jsonl` names runs
that were measured before, by file and id.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .draw import draw_cases
from .seen import seen_runs

HERE = Path(__file__).parent


def write(name: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows, one JSON object on each line."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (HERE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write("cases.jsonl", draw_cases())
    write("seen.jsonl", seen_runs())
