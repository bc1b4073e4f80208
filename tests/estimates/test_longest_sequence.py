"""The search for the longest sequence, on made-up bytes for each token."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import Struct

from gpu_mem_calculator.estimates import longest_sequence
from gpu_mem_calculator.pytorch.replay.settings import AllocatorSettings


class OneSequence(Struct):
    """What the search reads of a run."""

    seq: int
    record: object = None
    new_tokens: int | None = None


class OneResolved(Struct):
    """What it reads of a resolved run."""

    run: OneSequence
    longest_seq: int | None = None
    hardware: Any = None
    allocator: Any = AllocatorSettings()


def by_ledger(limit: int, seq: int, most: int | None) -> tuple[int | None, int]:
    """The longest sequence where each token takes 10 bytes, and how many lengths were tried."""
    tried = []

    def needs(tokens: int) -> int:
        tried.append(tokens)
        return 10 * tokens

    resolved: Any = OneResolved(OneSequence(seq), most)
    return longest_sequence._longest_by_ledger(resolved, needs, limit), len(tried)


@pytest.mark.parametrize(
    ("limit", "seq", "most", "longest", "tries"),
    [
        (1280, 512, None, 128, 3),  # as many bytes as 128 tokens take: 512, 128, 256
        (1279, 512, None, None, 2),
        (5120, 512, 1024, 512, 3),
        (5119, 512, 1024, 384, 3),
        (10240, 512, 1024, 1024, 2),  # all of the model's positions
        (10239, 512, 1024, 896, 4),
        (10**9, 512, 1000, 896, 2),  # a multiple of 128 below 1000
        (10**12, 512, None, 2**24, 16),
        (3840, 100, None, 384, 5),
    ],
)
def test_the_limit_itself_fits(
    limit: int, seq: int, most: int | None, longest: int | None, tries: int
) -> None:
    """A length that takes all bytes fits; one byte less, and it is the next shorter one."""
    assert by_ledger(limit, seq, most) == (longest, tries)


@pytest.mark.parametrize("square", [0, 1, 100])
@pytest.mark.parametrize("exact", [40_000, 1_000_000, 1_050_000])
def test_a_long_sequence_is_close(exact: int, square: int) -> None:
    """Within 1/32 below the exact answer, also where masks grow with the square of the length."""

    def needs(tokens: int) -> int:
        return 10 * tokens + square * tokens**2

    resolved: Any = OneResolved(OneSequence(1024))
    longest = longest_sequence._longest_by_ledger(resolved, needs, needs(exact))
    assert longest is not None
    assert exact * 31 / 32 - 128 <= longest <= exact


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("fragments", [0, 1, 8])
@pytest.mark.parametrize(
    ("seq", "survives", "longest", "replays"),
    [
        (1024, 8192, 7936, 5),  # near the ledger's answer
        (1024, 4096, 4096, 9),  # guess: 2438 of 12000 bytes are beyond the ledger, so 6400
        (1024, 6399, 6144, 6),
        (1024, 6400, 6400, 2),
        (1024, 100, 1024, 10),  # the run itself fits
        (9000, 256, 256, 9),  # it does not
        (9000, 127, None, 9),
    ],
)
def test_fragments_shorten_the_sequence(
    monkeypatch: pytest.MonkeyPatch,
    seq: int,
    survives: int,
    longest: int | None,
    replays: int,
    fragments: int,
    asks: bool,
) -> None:
    """Lengths are replayed from the first guess, which has the fragments of the run itself. What
    the answer is does not depend on how much those that die are said to take, nor on whether the
    ledger is asked for a bound where the first guess dies.
    """
    tried, bounds = [], []
    if asks:
        monkeypatch.setattr(longest_sequence, "_is_below_most", lambda *_: False)

    def replay(longer: Any, stage: int, cap: int) -> int:
        assert (stage, cap) == (1, 81920 - 81920 * 1024 // 12000)
        length = longer.run.seq
        tried.append(length)
        return cap if length <= survives else cap + 1 + fragments * length

    ledgers = SimpleNamespace(peaks=lambda _: [8000, 8562])
    monkeypatch.setattr(longest_sequence, "stage_ledgers", lambda _: ledgers)

    def by_ledger(_: Any, needs: Any, limit: int) -> int:
        bounds.append(limit)
        return limit // 10 // 128 * 128

    monkeypatch.setattr(longest_sequence, "_longest_by_ledger", by_ledger)
    monkeypatch.setattr(longest_sequence, "_taken", replay)
    resolved = OneResolved(OneSequence(seq), hardware=SimpleNamespace(memory_bytes=81920))
    result = SimpleNamespace(
        figures_fit=seq < 8192, needs_bytes=9976, margin_bytes=1024, outside_torch_bytes=1000
    )
    estimate: Any = SimpleNamespace(resolved=resolved, result=result)
    found = longest_sequence.longest_sequence(estimate)
    assert found == longest
    assert (81920 in bounds) == (asks or survives >= 6400)  # the card's memory
    assert len(set(tried)) == len(tried) <= replays


def test_a_length_that_adds_nothing_is_followed_by_the_middle() -> None:
    """Where model states alone are too large, no length is nearer to the end than another."""
    lengths = longest_sequence.TriedLengths(1, 4096, 2048)
    lengths.add(2048, taken=10, cap=5, fixed=10)
    assert (lengths.dies, lengths.turn) == (2048, 1024)
