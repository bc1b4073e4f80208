"""Write the drawn cases, and the measured runs to calibrate with: `python -m tests.capped_runs`.

`cases.jsonl` and `second.jsonl` are the draws of two seeds, each made before any of its cases was
run. `seen.jsonl` names runs that were measured before, by file and id.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .draw import DRAWS, draw_cases
from .seen import seen_runs

HERE = Path(__file__).parent


def write(name: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows, one JSON object on each line."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (HERE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for name in DRAWS:
        if not (HERE / name).exists():  # a draw is never made again
            write(name, draw_cases(name))
    write("seen.jsonl", seen_runs())
