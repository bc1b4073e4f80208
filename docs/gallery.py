"""Writes docs/gallery.md: public questions, the command that asks each, and its one line.

    python docs/gallery.py

gallery.json has the questions: what was asked in a thread, the command, what happened there, and
how our line compares with it, as a person judged.
"""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from unittest.mock import patch

from gpu_mem_calculator.cli.main import main

HERE = Path(__file__).parent
Row = Mapping[str, str]
GRADES = ("right", "partly", "cannot tell", "refused", "wrong")
KINDS = {
    "serving": "Serving",
    "training": "Training",
    "rl": "Reinforcement learning",
    "local": "On one's own computer",
    "crash": "After a crash",
}
HEAD = (
    "# Gallery\n\n{number} questions from public threads, the command that asks each, and the last "
    "line of its\nanswer, beside what happened. `python docs/gallery.py` asks them again. Where a "
    "thread does not say\nsomething, such as its card, or names a model that is not in the "
    "catalogue, the command has a\nlike one. The threads were chosen by hand, so these counts say "
    "nothing of accuracy (see\n[accuracy](accuracy.md)): {counts}.\n"
)


def rows() -> list[Row]:
    """The questions."""
    found: list[Row] = json.loads((HERE / "gallery.json").read_text(encoding="utf-8"))
    return found


def last_line(command: str) -> str:
    """The line that a command ends with; of a refusal its sentence."""
    out, error = StringIO(), StringIO()
    quiet = {"HF_HUB_OFFLINE": "1", "NO_COLOR": "1", "GPU_MEM_CALC_AT": "newest"}
    with patch.dict(os.environ, quiet), redirect_stdout(out), redirect_stderr(error):
        main(shlex.split(command))
    return (out.getvalue() or error.getvalue()).splitlines()[-1]


def entry(row: Row, line: str) -> str:
    """One question."""
    return (
        f"**[{row['thread']}]({row['url']})**: {row['asked']}\n\n"
        f"```console\n$ gpu-mem-calc {row['command']}\n{line}\n```\n\n"
        f"In the thread: {row['happened']}. Our line: **{row['ours']}**.\n"
    )


def page(found: Sequence[Row]) -> str:
    """The whole page."""
    counted = Counter(row["ours"] for row in found)
    counts = ", ".join(f"{counted[one]} {one}" for one in GRADES if counted[one])
    blocks = [HEAD.format(number=len(found), counts=counts)]
    for kind, title in KINDS.items():
        blocks.append(f"## {title}\n")
        blocks += [entry(one, last_line(one["command"])) for one in found if one["kind"] == kind]
    return "\n".join(blocks)


if __name__ == "__main__":
    (HERE / "gallery.md").write_text(page(rows()), encoding="utf-8")
