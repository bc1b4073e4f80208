"""What docs/notebooks.md shows runs, and is as large as it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_samples_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one notebook, as they are printed."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for number, block in enumerate(BLOCKS):
        exec(compile(block, f"notebooks.md, block {number + 1}", "exec"), names)
    assert names["picture"].svg() in names["result"].plot()._repr_html_()
    assert (tmp_path / "step.svg").read_text(encoding="utf-8").startswith("<svg")
    assert len(names["rows"]) == 4
    assert names["found"].fits("4090")
    least, most = map(int, re.findall(r"It takes (\d+) to (\d+) kB \(a picture", PAGE)[0])
    shown = [names[one]._repr_html_() for one in ("result", "picture", "rows", "found")]
    assert all(1000 * least < len(one.encode()) < 1000 * most for one in shown)


def test_the_options_that_it_names_are_the_magics() -> None:
    """Each of them."""
    from gpu_mem_calculator.cli.parser import Parser

    parser = Parser(prog="%%gpu_mem_check")
    parser.add("gpu_mem_check", {})
    named = set(re.findall(r"`(--[\w-]+)`", PAGE))
    assert named
    assert named <= parser._option_string_actions.keys()
