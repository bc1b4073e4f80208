"""The page of DeepSpeed's JSON says what the code does."""

from __future__ import annotations

import re

import pytest

from gpu_mem_calculator.tools.deepspeed.keys import TOP
from tests.docs.test_documents import ROOT, script

PAGE = ROOT / "docs" / "formats-deepspeed.md"


def test_the_page_is_up_to_date() -> None:
    """`python docs/formats_deepspeed.py` would change nothing."""
    assert script("formats_deepspeed")["page"]() == PAGE.read_text("utf-8")


def test_every_key_is_on_it() -> None:
    """Each of the file's own, wherever it belongs."""
    words = set(re.findall(r"`([\w.]+)`", PAGE.read_text("utf-8")))
    missing = [
        key for key in TOP if key not in words and not any(w.startswith(f"{key}.") for w in words)
    ]
    assert missing == []


def test_its_python_runs(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the file that it shows."""
    text = PAGE.read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    shown = re.findall(r"```json\n(.*?)```", text, re.DOTALL)[0]
    monkeypatch.chdir(str(tmp_path))
    with open("ds_config.json", "w", encoding="utf-8") as file:
        file.write(shown)
    exec(compile(code, PAGE.name, "exec"), {})
