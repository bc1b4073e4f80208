"""The tables of errors in `docs/curves.md`: `python -m maintenance.curves.page` writes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_mem_calculator import catalog
from gpu_mem_calculator.catalog.curve_files import cards, curve

PAGE = Path(__file__).parents[2] / "docs/curves.md"
PARTS = ("training", "training_between_points", "all", "collections")


def page(text: str) -> str:
    """The page with its tables as the data have them."""
    for kind, lines in (("matmul", _matmul()), ("attention", _attention())):
        start, end = f"<!-- {kind} -->\n", "<!-- end -->"
        before, after = text.split(start)
        text = f"{before}{start}{chr(10).join(lines)}\n{end}{after.split(end, 1)[1]}"
    return text


def _matmul() -> Iterator[str]:
    yield "| card | dtype | training | between points | all rows | collections |"
    yield "|---|---|---|---|---|---|"
    for card in cards("matmul"):
        for dtype, one in sorted(curve("matmul", card)["curves"].items()):
            errors = (_error(one["spread"].get(part)) for part in PARTS)
            yield f"| {_title(card)} | {dtype} | {' | '.join(errors)} |"
    yield "\nMedian and 90th percentile, and the median with its sign."


def _attention() -> Iterator[str]:
    yield "| card | rows | error |"
    yield "|---|---|---|"
    for card in cards("attention"):
        spread = curve("attention", card)["spread"]
        yield f"| {_title(card)} | {spread['rows']:,} | {_error(spread)} |"


def _title(card: str) -> str:
    return str((catalog.named("gpus", card) or {})["title"]).removeprefix("NVIDIA ")


def _error(spread: dict[str, Any] | None) -> str:
    if spread is None:
        return "one collection"
    median, worse, bias = (spread[f"{name}_pct"] for name in ("median", "p90", "bias"))
    return f"{median:.1f}, {worse:.1f} ({bias:+.1f})"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
