"""How the HTML report writes sizes, counts and colours."""

import re
from importlib.resources import files

import pytest

from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.report.html_tables import size, table
from gpu_mem_calculator.report.lines import count


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    ("word", "behind"),
    [
        ("ink", "paper"),
        ("soft", "paper"),
        ("soft", "raised"),
        ("good", "good-paper"),
        ("bad", "bad-paper"),
        ("soft", "good-paper"),
        ("soft", "bad-paper"),
        ("limit", "paper"),
        ("warn", "warn-paper"),
        ("soft", "warn-paper"),
        ("ink", "raised"),
        ("ink", "bad-paper"),
        ("good", "paper"),
        ("warn", "paper"),
        ("bad", "paper"),
    ],
)
def test_text_has_contrast(scheme: str, word: str, behind: str) -> None:
    """The contrast of text is 4.5 to 1 or more (WCAG 2.2, 1.4.3)."""
    colours = _colours(scheme)
    assert _contrast(colours[word], colours[behind]) >= 4.5


@pytest.mark.parametrize("level", range(5))
def test_cells_are_readable(level: int) -> None:
    """What is written on a cell of the map stands out from its colour."""
    colours = _colours("light")
    ink = colours["on-full" if level == 4 else "on-heat"]
    assert _contrast(ink, colours[f"heat-{level}"]) >= 4.5


def _colours(scheme: str) -> dict[str, str]:
    """Every colour of a scheme."""
    page = files("gpu_mem_calculator.report").joinpath("tokens.css").read_text(encoding="utf-8")
    both = re.findall(r"--([\w-]+): light-dark\(#(\w{6}), #(\w{6})\);", page)
    one = re.findall(r"--([\w-]+): #(\w{6});", page)
    return dict(one) | {name: dark if scheme == "dark" else light for name, light, dark in both}


def _contrast(one: str, other: str) -> float:
    """WCAG 2.2, contrast ratio of two colours."""
    bright, dim = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def _luminance(colour: str) -> float:
    """WCAG 2.2, relative luminance of an sRGB colour."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        *((6_738_415_616, "6.74 B"), (124_439_808, "124 M"), (70_000, "70 K"), (12, "12")),
        *((999, "999"), (1000, "1 K"), (10**6, "1 M"), (10**9, "1 B"), (10**12, "1 T")),
    ],
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


def test_a_column_without_a_name_has_no_head() -> None:
    """A screen reader finds no empty header."""
    made = table("sizes", ["what", "#GiB", "|"], [])
    assert made.count("<th") - made.count("<thead") == 2
    assert '<td class="bar-cell"></td>' in made
