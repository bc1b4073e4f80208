"""mypy refuses formulas with a wrong kind of value, and bytes that were never sized."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api

from tests.conftest import ROOT

# A line that mypy must refuse ends with the code of its error; the other lines must pass.
SNIPPETS = """
from gpu_mem_calculator.pytorch.autograd.events import EventRecorder
from gpu_mem_calculator.pytorch.autograd.tape import Tape, Value
from gpu_mem_calculator.ledger.ledger import PARAM, Entry
from gpu_mem_calculator.ledger.num import Bytes, Num, larger, sized
from gpu_mem_calculator.ledger.source import ARITHMETIC
from gpu_mem_calculator.pytorch.modelling.huggingface.quirks import Quirks


def entry(size: Bytes) -> Entry:
    return Entry(name="", kind=PARAM, bytes=size, live={}, source=ARITHMETIC)


def formulas(n: Num, x: Value, tape: Tape, recorder: EventRecorder, quirks: Quirks) -> None:
    entry(sized(n, 16) * 2 + larger(x.bytes, sized(n, 8)))
    entry(x.bytes // n)
    tape.op("", x, elements=n * 4, temp=(sized(n, 32), x.bytes))
    recorder.make(x.bytes)
    assert quirks.fp32_rotary_tables
    Entry(name="", kind=PARAM, bytes=n, live={}, source=ARITHMETIC)  # arg-type
    Entry(name="", kind=PARAM, bytes=2, live={}, source=ARITHMETIC)  # arg-type
    entry(x.elements())  # arg-type
    entry(n * 2)  # arg-type
    entry(sized(n, 16) + n)  # arg-type
    tape.op("", x, temp=x.elements())  # arg-type
    tape.op("", x, elements="4096")  # arg-type
    recorder.make(n)  # arg-type
    n + "4096"  # operator
    n * 0.5  # operator
    n * None  # operator
    larger(n, [1])  # type-var
    sized(n / 2, 16)  # operator
    assert quirks.fp32_rotary_table  # attr-defined
"""


def test_mypy_refuses_what_is_no_formula(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements where bytes belong, text or fractions in formulas, a quirk that does not exist."""
    path = tmp_path / "formulas.py"
    path.write_text(SNIPPETS, encoding="utf-8")
    monkeypatch.chdir(ROOT)
    output, errors, _ = api.run(["--config-file", "pyproject.toml", str(path)])
    assert not errors
    refused = set(re.findall(r"formulas\.py:(\d+): error: .*\[([a-z-]+)\]$", output, re.M))
    lines = enumerate(SNIPPETS.splitlines(), 1)
    wanted = {(str(n), line.rpartition("  # ")[2]) for n, line in lines if "  # " in line}
    assert wanted <= refused
    assert {line for line, _ in refused} == {line for line, _ in wanted}


def test_the_ledger_has_no_any() -> None:
    """The package that everything is built on looks away nowhere."""
    ledger = ROOT / "src" / "gpu_mem_calculator" / "ledger"
    files = {path.name: path.read_text(encoding="utf-8") for path in ledger.glob("*.py")}
    assert files
    assert [name for name, text in files.items() if re.search(r"\bAny\b", text)] == []
