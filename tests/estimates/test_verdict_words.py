"""What a card must have, in words."""

from __future__ import annotations

from gpu_mem_calculator import estimate
from gpu_mem_calculator.estimates.verdict_words import result_verdict, total_bytes, verdict_line
from tests.conftest import small_run


def test_the_margin_is_apart_from_what_is_needed() -> None:
    """Together they are what the card must have."""
    result = estimate(small_run())
    found = result_verdict(result)
    assert found.margin == result.margin_bytes > 0
    assert found.needs + found.margin == total_bytes(result)


def test_without_a_replay_there_is_no_margin() -> None:
    """The bounds are those of the ledger."""
    result = estimate(small_run(), replay=False)
    found = result_verdict(result)
    assert (found.margin, found.needs) == (0, total_bytes(result))


def test_of_users_that_all_have_no_room_none_runs() -> None:
    """They do not wait for each other."""
    inference = {"engine": "sglang", "batch_size": 20, "max_seq_len": 32768}
    run = {"model": {"name": "qwen3-8b"}, "inference": inference, "hardware": {"gpu": "4090"}}
    words = verdict_line(estimate(run))
    assert "none of 20 users at 32,768 tokens, sequences of up to" in words
    assert "wait" not in words
