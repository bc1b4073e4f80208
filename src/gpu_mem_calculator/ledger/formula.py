"""Formulas of servers in words: `8,192 tokens × (4,096 residual + 14,336 product) × 2 bytes`.

Words only name the numbers before them: without the words, a formula is arithmetic that gives the
bytes. A size that no short formula gives says how it was found instead, behind `SIMULATED`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

Formula = str | Callable[[], str]  # a function, where the text takes longer than the number
Term = tuple[str, int]  # what is counted, and how many
SIMULATED = "simulated: "
WORD = r"\b(?!(?:ceil|floor)\()[A-Za-z][\w'-]*,?|(?<= ),"


def formula_text(formula: Formula) -> str:
    """The text of a formula."""
    return formula if isinstance(formula, str) else formula()


def numbers_of(formula: str) -> str:
    """A formula without its words: arithmetic alone; "" for a size that was simulated."""
    if formula.startswith(SIMULATED):
        return ""
    numbers = re.sub(WORD, "", formula)
    return " ".join(numbers.split()).replace("( ", "(").replace(" )", ")")


def added(terms: Iterable[Term]) -> str:
    """Named numbers and their sum: `(4,096 residual + 14,336 product)`; zeros are left out."""
    shown = [f"{number:,} {name}".rstrip() for name, number in terms if number]
    return f"({' + '.join(shown)})" if len(shown) != 1 else shown[0]


def total(terms: Iterable[Term]) -> int:
    """The sum of named numbers."""
    return sum(number for _, number in terms)


def product(*factors: int | Term | list[Term]) -> tuple[int, str]:
    """A product of numbers, named ones and sums, and its text: `8,192 tokens × 4,096 × 2 bytes`."""
    size, texts = 1, []
    for factor in factors:
        if isinstance(factor, list):
            size *= total(factor)
            texts.append(added(factor))
        else:
            name, number = factor if isinstance(factor, tuple) else ("", factor)
            size *= number
            texts.append(f"{number:,} {name}".rstrip())
    return size, " × ".join(texts)


def bytes_each(bits: int) -> str:
    """The factor that turns elements of `bits` bits into bytes."""
    if bits % 8:
        return f"{bits} bits / 8"
    return f"{bits // 8} byte{'s' * (bits > 8)}"
