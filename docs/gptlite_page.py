"""Writes the tables of gptlite.md and its pictures from docs/gptlite/.

python docs/gptlite_page.py          from what was predicted and measured; needs no torch
python docs/gptlite_page.py --ask    asks for the estimate that the page shows first; needs torch
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import gptlite_compared as compared
import gptlite_plots
import gptlite_rows
import gptlite_tables as tables
from gptlite_rows import FOLDER

sys.path.pop(0)  # the example has a gptlite of its own

PAGE = FOLDER.with_suffix(".md")
BODIES: dict[str, Callable[[], str]] = {
    "memory": tables.memory,
    "close": tables.close,
    "largest": tables.largest,
    "score": tables.score,
    "pipelines": tables.pipelines,
    "before": tables.before,
    "changed": tables.changed,
    "moved": tables.moved,
    "made": tables.made,
    "trained": tables.trained,
    "published": compared.published,
    "apart": compared.apart,
    "published-pipelines": compared.published_pipelines,
    "ways": compared.ways,
    "deepspeed": compared.deepspeed,
    "plain": compared.plain,
    "answer": compared.answer,
}


def page(text: str) -> str:
    """The page with what stands between its marks made anew."""
    for mark, body in BODIES.items():
        new = f"<!-- {mark} -->\n{body()}\n<!-- end -->"
        text, count = re.subn(
            rf"<!-- {mark} -->\n.*?<!-- end -->", lambda _, n=new: n, text, flags=re.DOTALL
        )
        if count != 1:
            raise ValueError(f"{PAGE.name} has {count} marks {mark!r}: one is needed")
    return text


def documents() -> Iterator[tuple[Path, str]]:
    """Everything that is written, as it should be now."""
    yield PAGE, page(PAGE.read_text("utf-8"))
    yield FOLDER / "memory.svg", gptlite_plots.memory(list(gptlite_rows.memories()))
    yield FOLDER / "ladder.svg", gptlite_plots.ladder(gptlite_rows.largests())


def ask() -> None:
    """Run the command that the page shows, and keep what it prints."""
    words = [sys.executable, "-m", "gpu_mem_calculator", *shlex.split(compared.ASKED)[1:]]
    folder = gptlite_rows.CONFIGS.parent
    found = subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True)
    compared.ANSWER.write_text(found.stdout, "utf-8")


if __name__ == "__main__":
    if "--ask" in sys.argv[1:]:
        ask()
    for target, content in documents():
        target.write_text(content, "utf-8")
