"""vLLM: images of the profile run."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.serving.vllm.defaults import apply_defaults
from gpu_mem_calculator.serving.vllm.images import num_images

from .vllm_servers import item, run, served


@pytest.mark.parametrize(
    ("model", "count"),
    [
        ("gemma3-27b-it", 31),
        ("mistral-small-3.1-24b", 2),
        ("qwen3.6-27b", 1),
        ("llama4-scout-instruct", 3),
        ("llama3.1-8b", 0),
    ],
)
def test_as_many_as_a_step_takes(model: str, count: int) -> None:
    """A log of Gemma 3 has 31 images in 8,192 tokens, one of Qwen 3.8 has one in 16,384."""
    assert num_images(apply_defaults(run(model, engine_version="0.19.0"))) == count


def test_they_stay_while_the_language_model_runs() -> None:
    """31 images of 896 x 896 in 16 bits stay, and 256 rows for each."""
    memory = served("gemma3-4b-it", engine_version="0.19.0", max_seq_len=8192)
    assert item(memory, "images: 31 of the largest") == 31 * 3 * 896 * 896 * 2
    assert item(memory, "outputs of the vision tower") == 31 * 256 * 2560 * 2


def test_some_versions_copy_each_into_the_whole_budget() -> None:
    """0.11 and 0.12 have 8,192 rows for each image."""
    old, new = (
        served("mistral-small-3.1-24b", engine_version=version, max_seq_len=16000)
        for version in ("0.11.0", "0.13.0")
    )
    name = "outputs of the vision tower"
    assert item(old, name) == 2 * 8192 * 5120 * 2
    assert item(new, name) == 2 * 3025 * 5120 * 2


def activations(**more: int) -> Iterator[str]:
    """Names of what is alive at the peak of a server with a vision tower."""
    memory = served(
        "qwen3.6-27b",
        "l40s",
        engine_version="0.26.0",
        quantization="fp8",
        max_seq_len=131072,
        **more,
    )
    return (one.name for one in memory.items)


def test_with_few_sequences_the_tower_is_highest() -> None:
    """65,536 patches in its feed-forward take more than the logits of 16 sequences."""
    assert "tower: activations" in activations(max_num_seqs=16)
    assert "tower: activations" not in activations(max_num_seqs=1024)


def test_states_for_every_sequence() -> None:
    """From 0.20 on graphs need a state per sequence; a log of 0.26.0 has 184, and takes 16."""
    options = {"quantization": "fp8", "max_seq_len": 131072, "gpu_memory_utilization": 0.9}
    many, few, old = (
        served("qwen3.6-27b", "l40s", engine_version=version, max_num_seqs=seqs, **options)
        for version, seqs in (("0.26.0", 256), ("0.26.0", 16), ("0.19.0", 256))
    )
    assert re.match(
        "max_num_seqs=256 needs as many states; the KV cache holds 18[0-9]", many.problem
    )
    assert not few.problem
    assert not old.problem
    assert many.needs_bytes > few.needs_bytes + 2 * GIB
