"""A run with every combination of values."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from gpu_mem_calculator import InputError, estimate, sweep

RUN: dict[str, Any] = {"model": {"name": "gpt2"}, "hardware": {"gpu": "4090"}}


def test_a_row_is_what_an_estimate_of_the_same_run_says() -> None:
    """In the order of the values, the last one first; every row has the same keys."""
    rows = sweep(RUN, {"training.seq_len": [512, 1024]}, batch_size=range(1, 3))
    asked = [(row["training.seq_len"], row["batch_size"]) for row in rows]
    assert asked == [(512, 1), (512, 2), (1024, 1), (1024, 2)]
    alone = estimate({**RUN, "training": {"seq_len": 1024, "batch_size": 2}})
    assert rows.results[-1] is not None
    assert rows.results[-1].needs_bytes == alone.needs_bytes == rows[-1]["needs_bytes"]
    assert rows[-1]["total_bytes"] == pytest.approx(alone.total_memory_per_gpu_gb * 2**30, rel=1e-9)
    assert rows[-1]["peak_instant"] == alone.peak_instant
    assert len({tuple(row) for row in rows}) == 1
    assert "seq_len" not in RUN.get("training", {})


def test_what_one_combination_refuses_is_said_in_its_row() -> None:
    """The others are estimated."""
    run = {"model": {"name": "llama3.2-1b"}, "engine": {"type": "megatron_lm"}}
    rows = sweep(run, tensor_parallel_size=[1, 3], num_gpus=6, replay=False)
    assert [row["verdict"] is None for row in rows] == [False, True]
    assert "tensor_parallel_size=3 does not divide 32 heads; try 2 or 4" in rows[1]["problem"]
    assert rows.results[1] is None
    assert rows[0]["problem"] == ""
    assert "does not divide" in rows._repr_html_()


def test_a_server_has_its_users() -> None:
    """More on the larger card; a name of the server's is known, too."""
    rows = sweep("vllm serve Qwen/Qwen2.5-7B", gpu=["4090", "h100"], max_model_len=[8192])
    assert 0 < rows[0]["users"] < rows[1]["users"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"bach_size": [1]}, "bach_size is not a key of a run file; did you mean 'batch_size'?"),
        ({"batch_size": []}, "batch_size has no value"),
        ({}, "a sweep needs a key and its values"),
        ({"batch_size": ["x", -1]}, "training.batch_size='x' must be a whole number"),
    ],
)
def test_bad_input_is_one_sentence(more: dict[str, Any], words: str) -> None:
    """What no combination takes is raised."""
    with pytest.raises(InputError, match=words.partition(";")[0].replace("?", r"\?")) as error:
        sweep(RUN, **more)
    assert words in str(error.value)


def test_a_key_of_two_sections_has_to_be_named_with_one() -> None:
    """The sentence shows how."""
    with pytest.raises(InputError, match=r"write \{'inference.max_seq_len': \[...\]\}"):
        sweep("vllm serve Qwen/Qwen2.5-7B", max_seq_len=[4096])


def test_rows_become_a_dataframe(monkeypatch: pytest.MonkeyPatch) -> None:
    """With pandas; without it, one sentence says how to install it."""
    rows = sweep(RUN, batch_size=[1, 2], replay=False)
    frame = rows.to_dataframe()
    assert list(frame["batch_size"]) == [1, 2]
    assert list(frame.columns) == list(rows[0])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"needs pandas; pip install .*\[notebook\]"):
        rows.to_dataframe()
