"""A log with its run becomes a measured run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_mem_calculator.cli.main import main
from gpu_mem_calculator.lab.backtest.rows import parse_rows

SERVER = """$ vllm serve Qwen/Qwen3-8B --max-model-len 8192
INFO 08-20 09:12:31 [api_server.py:1805] vLLM API server version 0.10.1
INFO 08-20 09:13:17 [gpu_model_runner.py:1953] Model loading took 15.2683 GiB and 12.7 seconds
INFO 08-20 09:13:37 [gpu_worker.py:276] Available KV cache memory: 52.10 GiB
INFO 08-20 09:13:38 [kv_cache_utils.py:849] GPU KV cache size: 379,344 tokens
INFO 08-20 09:13:58 [gpu_model_runner.py:2708] Graph capturing finished in 20 secs, took 0.61 GiB
"""
TRAINING = (
    "[Rank 0] (after 2 iterations) memory (MB) | allocated: 26478.82 | max allocated: 61020.05"
    " | reserved: 65512.0 | max reserved: 65512.0\n"
)


def _row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, *words: str
) -> dict[str, object]:
    path = tmp_path / "my server.log"
    path.write_text(text)
    assert main(["backtest", "--from-log", str(path), *words]) == 0
    printed = capsys.readouterr().out
    assert parse_rows(printed)
    found: dict[str, object] = json.loads(printed)
    return found


def test_a_servers_log_states_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With what it printed, to the printed digit, and its release."""
    row = _row(tmp_path, capsys, SERVER)
    assert row["id"] == "my-server"
    assert row["group"] == "vllm"
    assert row["environment"] == {"source": "my server.log", "vllm": "0.10.1"}
    assert row["measured"] == {
        "weights_bytes": round(15.2683 * 2**30),
        "graph_bytes": round(0.61 * 2**30),
        "kv_pool_bytes": round(52.10 * 2**30),
        "kv_tokens": 379_344,
    }


def test_of_pools_that_are_made_twice_the_last_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """TensorRT-LLM makes a small one for its trial run first; ranks print their own."""
    pool = "[TensorRT-LLM][INFO] [MemUsageChange] Allocated {} GiB for max tokens in paged KV cache"
    trial = "Peak memory during memory usage profiling (torch + non-torch): 20.10 GiB, available KV"
    trial += " cache memory when calculating max tokens: 52.00 GiB, fraction is set 0.9"
    text = f"{pool.format('0.27')} (2208).\n[TRT-LLM] [I] {trial}\n{pool.format('51.90')} (377424)."
    row = _row(tmp_path, capsys, text, "--", "trtllm-serve", "Qwen/Qwen3-8B")
    measured = row["measured"]
    assert isinstance(measured, dict)
    assert measured["kv_pool_bytes"] == round(51.90 * 2**30)
    assert measured["kv_tokens"] == 377_424


def test_a_training_log_needs_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The highest allocated and reserved memory."""
    words = ("--", *["trl", "sft", "--model_name_or_path", "gpt2", "--dataset_name", "a"])
    row = _row(tmp_path, capsys, TRAINING, *words)
    measured = row["measured"]
    assert measured == {"allocated_bytes": round(61020.05 * 2**20), "reserved_bytes": 65512 * 2**20}


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        (TRAINING, (), "does not state its run"),
        ("nothing\n", ("--", "vllm", "serve", "gpt2"), "no figure that backtest compares"),
        (SERVER, ("-c", "x.json", "--", "vllm", "serve", "gpt2"), "takes a log and one run"),
    ],
)
def test_what_is_missing_is_said(
    text: str, words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one sentence."""
    path = tmp_path / "log.txt"
    path.write_text(text)
    assert main(["backtest", "--from-log", str(path), *words]) == 2
    assert said in capsys.readouterr().err


def test_a_file_of_runs_is_still_needed(capsys: pytest.CaptureFixture[str]) -> None:
    """Where no log is given."""
    assert main(["backtest"]) == 2
    assert "needs RUNS.jsonl" in capsys.readouterr().err
