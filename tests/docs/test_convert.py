"""docs/convert.md shows what the commands print, and every format.

`python -m tests.docs.test_convert` writes the page's outputs anew.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex

from gpu_mem_calculator.cli.main import main
from gpu_mem_calculator.tools.writing.writers import WRITERS
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "convert.md"
BLOCK = re.compile(r"(<!-- \w+ -->\n```console\n\$ gpu-mem-calc ([^\n]*)\n)(.*?)(```\n)", re.DOTALL)


def printed(command: str) -> str:
    """What a command prints: stdout, then stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        main(shlex.split(command))
    return out.getvalue() + err.getvalue()


def page() -> str:
    """The page with what its commands print now."""
    text = PAGE.read_text(encoding="utf-8")
    return BLOCK.sub(lambda found: f"{found[1]}{printed(found[2])}{found[4]}", text)


def test_the_page_shows_what_is_printed() -> None:
    """Character for character."""
    assert len(BLOCK.findall(page())) == 2
    assert page() == PAGE.read_text(encoding="utf-8")


def test_the_page_has_every_format() -> None:
    """A row, or a word in one."""
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert named == list(WRITERS)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
