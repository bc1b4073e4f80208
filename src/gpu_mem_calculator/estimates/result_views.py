"""A result for people: a few lines for `print`, one for `repr`, a small table for notebooks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..ledger.units import GIB, gib
from .fit_verdict import FITS, SHORT, UNSURE
from .verdict_words import total_bytes

if TYPE_CHECKING:
    from .result import MemoryResult

WIDTH = 240  # pixels of the bar
COLOURS = {FITS: "#2e7d32", SHORT: "#c62828", UNSURE: "#b26a00"}  # of the bar


def short_text(result: MemoryResult) -> str:
    """The verdict, the parts at the peak, and what limits the run."""
    parts = ", ".join(f"{name} {gib(size, 2)}" for name, size in part_rows(result))
    return "\n".join([result.summary, f"  {parts} GiB", *(f"  {text}" for text in _more(result))])


def part_rows(result: MemoryResult) -> list[tuple[str, int]]:
    """The parts of the total in bytes."""
    if result.serving is not None:
        serving = result.serving
        return [
            ("weights", serving.weights_bytes),
            ("KV cache", serving.kv_pool_bytes),
            ("activations", serving.activation_bytes),
        ]
    parts = result.breakdown
    return [
        ("parameters", round(parts.model_params_gb * GIB)),
        ("gradients", round(parts.gradients_gb * GIB)),
        ("optimizer states", round(parts.optimizer_states_gb * GIB)),
        ("activations", round(parts.activations_gb * GIB)),
        ("overhead", round(parts.overhead_gb * GIB)),
    ]


def _more(result: MemoryResult) -> Iterator[str]:
    if result.serving is not None:
        serving = result.serving
        whole = int(serving.max_concurrency)
        length = f"{serving.max_seq_len:,} tokens"
        yield f"{serving.kv_tokens:,} tokens of cache, {whole:,} sequences of {length}"
        return
    yield f"peak: {result.peak_instant}"
    if result.fails_at is not None:
        step = f"in step {result.fails_at.step}" if result.fails_at.step else "at start-up"
        yield f"out of memory {step}, {result.fails_at.phase}"


def one_line(result: MemoryResult) -> str:
    """The verdict and the total."""
    total, has = gib(total_bytes(result), 2), gib(result.gpu_memory_bytes, 2)
    return f"MemoryResult(verdict={result.verdict!r}, total={total} of {has} GiB per GPU)"


def html_table(result: MemoryResult) -> str:
    """The verdict, a bar of the share of the card, and the parts, as HTML without scripts."""
    from html import escape

    total = total_bytes(result)
    share = min(1.0, total / result.gpu_memory_bytes)
    colour = COLOURS[result.verdict]
    rows = "".join(
        f'<tr><td style="text-align:left">{name}</td><td>{gib(size, 2)}</td></tr>'
        for name, size in part_rows(result)
    )
    return (
        f"<div><p><strong>{escape(result.summary)}</strong></p>"
        f'<svg width="{WIDTH}" height="12" role="img" aria-label="{100 * share:.0f} % of the card">'
        f'<rect width="{WIDTH}" height="12" fill="#ddd"/>'
        f'<rect width="{WIDTH * share:.1f}" height="12" fill="{colour}"/></svg>'
        f"<table><thead><tr><th>at the peak</th><th>GiB</th></tr></thead><tbody>{rows}"
        f"<tr><th>total</th><th>{gib(total, 2)}</th></tr></tbody></table></div>"
    )
