"""Numbers that record their formula."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_mem_calculator.ledger.num import ceil_div, choose, holds, larger, round_up, smaller, take
from gpu_mem_calculator.ledger.sym import Sym

B, S, H = Sym.named(4, "b"), Sym.named(2048, "s"), Sym.named(4096, "h")


def test_a_product_shows_its_names_and_its_numbers() -> None:
    """Names in the usual order, a coefficient in front."""
    size = 2 * S * B * H
    assert size.formula == "2 × b × s × h"
    assert size.numbers == "2 × 4 × 2,048 × 4,096"
    assert int(size) == 2 * 4 * 2048 * 4096


def test_equal_terms_cancel() -> None:
    """A sum stays in normal form."""
    assert (B * S + H - B * S).formula == "h"
    assert (B - B).formula == "0"


def test_division_is_exact_where_every_term_divides() -> None:
    """Bits become bytes without leaving the polynomial."""
    assert (B * S * 16 // 8).formula == "2 × b × s"
    assert (B * S * H // H).formula == "b × s"


def test_other_operations_become_new_names() -> None:
    """A rounded division and a maximum show their formula."""
    assert (H // 3).formula == "floor(h / 3)"
    assert int(H // 3) == 4096 // 3
    assert larger(B * S, H).formula == "max(b × s, h)"
    assert smaller(B, 7).formula == "min(b, 7)"
    assert ceil_div(H, 3).formula == "ceil(h / 3)"
    assert round_up(B, 8).value == 8
    assert (H % 5).value == 4096 % 5


def test_comparisons_look_at_the_value() -> None:
    """A `Sym` compares like its value."""
    assert B < S <= H > 1
    assert B >= 4
    assert B == 4
    assert Sym.named(4, "other") == B
    assert B != "b"
    assert bool(B)
    assert not Sym.of(0)
    assert hash(B) == hash(4)
    assert list(range(10))[B] == 4


def test_the_rest_of_a_plain_number_is_a_formula() -> None:
    """A plain number may stand on the left of every operator that formulas use."""
    rest = 10 % Sym.named(4, "b")
    assert int(rest) == 2
    assert rest.formula == "mod(10, b)"


def test_subtraction_from_a_plain_number() -> None:
    """Constants may be on either side."""
    assert (10 - B).value == 6
    assert (-B).value == -4
    assert (8192 // H).value == 2
    assert repr(B) == "Sym(4, 'b')"


@pytest.mark.parametrize("kind", ["int", "array", "sym"])
def test_helpers_agree_on_ints_arrays_and_syms(kind: str) -> None:
    """One formula gives the same number for all three."""
    make = {"int": int, "array": lambda n: np.array([n, n]), "sym": lambda n: Sym.named(n, "x")}
    seven, three = make[kind](7), make[kind](3)

    def value(number: object) -> int:
        return int(np.asarray(number).ravel()[0]) if kind == "array" else int(number)  # type: ignore[call-overload, no-any-return]

    assert value(larger(seven, three)) == 7
    assert value(smaller(seven, three)) == 3
    assert value(ceil_div(seven, three)) == 3
    assert value(round_up(seven, 4)) == 8
    assert value(choose(seven > three, seven, three)) == 7
    assert value(holds(seven > three)) == 1
    assert value(take((5, 6, 7, 8), three)) == 8


@pytest.mark.parametrize(
    ("number", "formula", "value"),
    [
        (H // B, "h / b", 1024),  # exact, but not a term of the other
        (H // (B * 2), "h / (2 × b)", 512),
        (Sym.named(6156, "v") // (B + S), "floor(v / (s + b))", 3),
        (2 * H // 3, "floor((2 × h) / 3)", 2730),
        ((B + H) // 8, "floor((h + b) / 8)", 512),
        ((B + H) // B, "floor((h + b) / b)", 1025),
        ((B * H + B * S) // B, "h + s", 6144),
        (-B, "- b", -4),
        (H - B, "h - b", 4092),
    ],
)
def test_a_quotient_is_a_term_a_fraction_or_a_floor(number: Sym, formula: str, value: int) -> None:
    """A term where every part divides; a fraction where the numbers do; else rounded down."""
    assert (number.formula, number.value) == (formula, value)
