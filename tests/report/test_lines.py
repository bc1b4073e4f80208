"""Texts are broken into rows as Python's textwrap breaks them."""

from __future__ import annotations

import random
from textwrap import wrap

from gpu_mem_calculator.report.lines import folded


def test_a_text_is_folded_as_textwrap_does() -> None:
    """Long words, several spaces, tabs, newlines, hyphens and spaces of other alphabets."""
    draw = random.Random(7)
    pieces = ["a", "word", "--long-option", "x" * 30, " ", "  ", "\t", "\n", "\u00a0", "é×", "a-b"]
    for _ in range(4000):
        text = "".join(
            draw.choice(pieces) + " " * draw.randint(0, 1) for _ in range(draw.randint(0, 14))
        )
        width = draw.randint(1, 40)
        assert folded(text, width) == wrap(text, width, break_on_hyphens=False), (text, width)


def test_a_text_is_folded_where_there_is_no_room() -> None:
    """A label may be as wide as the terminal."""
    assert folded("ab c", 0) == ["a", "b", "c"]
