"""Results of calls with ints and small arrays are cached, all others are computed again."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from msgspec import Struct

from gpu_mem_calculator.ledger.remember import Same, forget, only_ints, remembered
from gpu_mem_calculator.ledger.sym import Sym
from gpu_mem_calculator.models.arch.symbolic import symbolic
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read
from tests.properties.test_engines import RUNS


class Sizes(Struct, frozen=True):
    """Numbers in a struct, and in a tuple in it."""

    one: Any
    several: tuple[Any, ...] = ()


def _counting(*, always: bool = False) -> tuple[Any, list[Any]]:
    calls: list[Any] = []

    @remembered(4, always=always)
    def double(value: Any, *, times: int = 2) -> Any:
        calls.append(value)
        return value.one * times if isinstance(value, Sizes) else value * times

    return double, calls


@pytest.mark.parametrize("value", [3, Sizes(3), Sizes(3, (1, "a", None, 2.5))])
def test_a_call_with_ints_is_computed_once(value: Any) -> None:
    """The second call has the first one's result."""
    double, calls = _counting()
    assert double(value) == double(value) == 6
    assert len(calls) == 1


@pytest.mark.parametrize("wrap", [lambda n: n, Sizes, lambda n: Sizes(1, (n,))])
@pytest.mark.parametrize("number", [Sym.named(3, "b"), numpy.zeros(40_000)])
def test_a_call_with_syms_or_large_arrays_is_computed_again(wrap: Any, number: Any) -> None:
    """At any place in the arguments."""
    double, calls = _counting()
    double(wrap(number))
    double(wrap(number))
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("first", "second", "calls_made"),
    [
        ({"a": 1, "b": (2,)}, {"b": (2,), "a": 1}, 1),
        ({"a": [1]}, {"a": (1,)}, 2),
        ({"a": 1}, {"a": 2}, 2),
        ({"a": Sym.named(3, "b")}, {"a": Sym.named(3, "b")}, 2),
    ],
)
def test_a_mapping_is_known_by_its_contents(first: Any, second: Any, calls_made: int) -> None:
    """In whatever order; with a `Sym` in it the call is computed again."""
    double, calls = _counting()
    double(Sizes(2, (first,)))
    double(Sizes(2, (second,)))
    assert len(calls) == calls_made


def test_a_small_array_is_known_by_its_contents() -> None:
    """Equal arrays share a result; another shape or another value does not."""
    double, calls = _counting()
    assert double(Sizes(numpy.array([3, 4]))).tolist() == [6, 8]
    assert double(Sizes(numpy.array([3, 4]))).tolist() == [6, 8]
    assert len(calls) == 1
    assert double(Sizes(numpy.array([[3, 4]]))).shape == (1, 2)
    assert double(Sizes(numpy.array([3, 5]))).tolist() == [6, 10]
    assert len(calls) == 3


def test_syms_do_not_get_the_result_of_their_values() -> None:
    """Although a `Sym` equals its value."""
    double, _ = _counting()
    assert double(3) == 6
    assert double(Sym.named(3, "b")).formula == "2 × b"


def test_named_arguments_count() -> None:
    """Another value of one is another call."""
    double, calls = _counting()
    assert (double(3, times=2), double(3, times=3)) == (6, 9)
    assert len(calls) == 2


def test_forget_clears_everything() -> None:
    """The next call is computed again."""
    double, calls = _counting()
    always, others = _counting(always=True)
    for _ in range(2):
        double(3)
        always(3)
        forget()
    assert (len(calls), len(others)) == (2, 2)


@pytest.mark.parametrize("name", sorted(RUNS))
def test_a_model_of_ints_is_cached(name: str) -> None:
    """No field of a layer prevents it; a layer with `Sym`s is not cached."""
    arch = resolve(read(RUNS[name]).file).run.arch
    assert only_ints(arch)
    assert all(map(only_ints, arch.layers))
    assert not any(map(only_ints, symbolic(arch).layers))


class KeptSizes(Sizes, frozen=True, dict=True):
    """Sizes that have a place for their key."""


def test_a_struct_of_arrays_that_has_a_place_for_its_key_keeps_it() -> None:
    """Its contents are read once; an equal struct still shares the result."""
    double, calls = _counting()
    many = KeptSizes(numpy.array([3, 4]))
    assert double(many).tolist() == double(many).tolist() == [6, 8]
    key = many.__dict__["array_key"]
    double(KeptSizes(numpy.array([3, 4])))
    assert len(calls) == 1
    assert many.__dict__["array_key"] is key


def test_a_value_may_be_known_by_itself_alone() -> None:
    """Equal values that are two are two keys."""
    one, other = [1], [1]
    assert Same(one) == Same(one)
    assert hash(Same(one)) == hash(Same(one))
    assert Same(one) != Same(other)
