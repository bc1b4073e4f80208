"""The largest entries of a trace, on made-up ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpu_mem_calculator.estimates.fit_verdict import FITS, SHORT
from gpu_mem_calculator.ledger.ledger import ACT, OPTIM, RUNTIME
from gpu_mem_calculator.report.lines import plain
from gpu_mem_calculator.report.tracing import LARGEST, WIDTH, TraceReport, _largest


def report(kinds: list[tuple[str, int, int]]) -> Any:
    """A trace with an entry for each kind, bytes and copies."""
    source = SimpleNamespace(text="model.py:7")
    entries = [
        SimpleNamespace(
            name="layers.0: mul",
            kind=kind,
            bytes=size,
            live={"peak": copies},
            source=source,
            at=lambda _, total=size * copies: total,
        )
        for kind, size, copies in kinds
    ]
    peak = SimpleNamespace(name="peak", title="backward")
    return SimpleNamespace(
        peak=peak, trace=SimpleNamespace(ledger=SimpleNamespace(entries=entries))
    )


@pytest.mark.parametrize(
    ("kind", "size", "copies", "shown"),
    [
        (ACT, 2048, 3, "   6.00 KiB  3 × 2.00 KiB      activations   layers.0"),
        (ACT, 2048, 1, "   2.00 KiB                    activations   layers.0"),
        (ACT, 1, 2048, "   2.00 KiB  2048 × 1 bytes    activations   layers.0"),
        (RUNTIME, 1, 2048, "   2.00 KiB                    runtime       layers.0"),
        (OPTIM, 2048, 1, "   2.00 KiB                    optimizer states layers.0"),
        (RUNTIME, 2, 1024, "   2.00 KiB  1024 × 2 bytes    runtime       layers.0"),
    ],
)
def test_an_entry_has_its_copies(kind: str, size: int, copies: int, shown: str) -> None:
    """Bytes of the runtime that are counted one by one are no copies."""
    _, first, second = plain(_largest(report([(kind, size, copies)]))).splitlines()[:3]
    assert first == shown
    assert second.strip() == "mul, model.py:7"


@pytest.mark.parametrize(("count", "more"), [(LARGEST, 0), (LARGEST + 2, 2)])
def test_ten_entries_are_shown_and_the_rest_counted(count: int, more: int) -> None:
    """Those without bytes at the peak are left out."""
    entries = [(ACT, 1024 * (number + 1), 1) for number in range(count)]
    lines = plain(_largest(report([*entries, (ACT, 5, 0)]))).splitlines()
    assert sum("layers.0" in line for line in lines) == 10
    assert any(f"{more} more" in line for line in lines) is bool(more)
    assert lines[1].lstrip().startswith(f"{count}.00 KiB ")


@pytest.mark.parametrize(("outside", "word", "headroom"), [(20, FITS, 0), (21, SHORT, -1)])
def test_torch_has_what_the_card_has_less_what_is_outside(
    outside: int, word: str, headroom: int
) -> None:
    """A run that needs 80 bytes of torch on a card of 100."""
    hardware = SimpleNamespace(memory_bytes=100)
    trace: Any = SimpleNamespace(
        resolved=SimpleNamespace(hardware=hardware, outside_torch=[("CUDA", outside, "")]),
        needs_bytes=80,
        margin_bytes=0,
        enough_bytes=80,
        survives=lambda cap: cap >= 80,
    )
    estimate: Any = None
    found = TraceReport(
        trace=trace, estimate=estimate, advice="", num_parameters=1, num_trained=1
    ).verdict
    assert (found.word, found.needs, found.headroom) == (word, 80 + outside, headroom)


def test_a_long_name_keeps_its_end_in_80_columns() -> None:
    """The module's own name is last."""
    made = report([(ACT, 2048, 3)])
    made.trace.ledger.entries[0].name = f"{'layers.' * 20}attention: mul"
    line = plain(_largest(made)).splitlines()[1]
    assert len(line) <= WIDTH
    assert line.endswith("layers.attention")
