"""How the HTML report writes sizes, counts and colours."""

import re
from importlib.resources import files

import pytest

from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.report.html_tables import count, size


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("word", "behind"), [
    ("ink", "paper"), ("soft", "paper"), ("soft", "raised"), ("good", "good-paper"),
    ("bad", "bad-paper"), ("soft", "good-paper"), ("soft", "bad-paper"), ("limit", "paper"),
    ("warn", "warn-paper"), ("soft", "warn-paper"),
])  # fmt: skip
def test_text_has_contrast(scheme: str, word: str, behind: str) -> None:
    """Text stands out from what is behind it by 4.5 to 1 or more (WCAG 2.2, 1.4.3)."""
    page = files("gpu_mem_calculator.report").joinpath("page.css").read_text(encoding="utf-8")
    start = page.index("prefers-color-scheme: dark") if scheme == "dark" else page.index(":root")
    colours = dict(re.findall(r"--([\w-]+): #([0-9a-f]{6})", page[start : page.index("}", start)]))
    bright, dim = sorted((_luminance(colours[word]), _luminance(colours[behind])), reverse=True)
    assert (bright + 0.05) / (dim + 0.05) >= 4.5


def _luminance(colour: str) -> float:
    """WCAG 2.2, relative luminance of an sRGB colour."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize(
    ("number", "shown"),
    [(6_738_415_616, "6.74 B"), (124_439_808, "124 M"), (70_000, "70 K"), (12, "12")],
)
def test_counts_are_short(number: int, shown: str) -> None:
    """Parameter counts have three digits and a unit."""
    assert count(number) == shown


@pytest.mark.parametrize(
    ("num_bytes", "shown"), [(0, ">0.00<"), (1024, ">&lt; 0.01<"), (GIB, ">1.00<")]
)
def test_sizes_have_two_decimals_and_exact_bytes(num_bytes: int, shown: str) -> None:
    """A size is GiB to read and bytes to point at."""
    assert shown in size(num_bytes)
    assert f'title="{num_bytes:,} bytes"' in size(num_bytes)
