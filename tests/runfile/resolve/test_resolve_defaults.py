"""From a run file to a run: what a file may leave out, and the ways to name a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import estimate, full_estimate
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read
from tests.conftest import SMALL_LLAMA, small_run


def test_a_dtype_alone_means_mixed_precision() -> None:
    """As documented."""
    found = resolve(read(small_run(training={"precision": None, "dtype": "float16"})).file)
    assert found.run.precision == "fp16_mixed"


@pytest.mark.parametrize(
    ("level", "policy", "quarters"),
    [(0, "none", 4), (1, "selective", 4), (2, "full", 2), (3, "full", 3), (4, "full", 4)],
)
def test_the_documented_checkpointing_levels(level: int, policy: str, quarters: int) -> None:
    """0 none, 1 selective, 2 and 3 full on a half and on three quarters, 4 full."""
    run = resolve(read(small_run(training={"activation_checkpointing": level})).file).run
    assert (run.recompute, run.recompute_quarters) == (policy, quarters)


def test_more_recompute_never_keeps_more() -> None:
    """The levels are in order: each recomputes more layers than the one before."""
    deep = {"config": {**SMALL_LLAMA, "num_hidden_layers": 16}}
    eager = {"attention": "eager"}
    kept = [
        estimate(small_run(model=deep, training={**eager, "activation_checkpointing": level}))
        for level in (0, 1, 2, 3, 4)
    ]
    sizes = [one.allocated_bytes for one in kept]
    assert sizes[0] > sizes[1]
    assert sizes[0] > sizes[2] > sizes[3] > sizes[4]


def test_a_model_may_be_a_folder_or_a_file(tmp_path: Path) -> None:
    """A config.json on disk, by its folder or by itself."""
    (tmp_path / "config.json").write_text(json.dumps(SMALL_LLAMA))
    for name in (tmp_path, tmp_path / "config.json"):
        run = small_run(model={"config": None, "name": str(name)})
        assert estimate(run).num_parameters == estimate(small_run()).num_parameters


def test_numbers_beside_a_name_win() -> None:
    """A preset with another depth and vocabulary."""
    run = small_run(model={"config": None, "name": "llama2-7b", "num_layers": 2, "vocab_size": 64})
    arch = full_estimate(run).resolved.model.arch
    assert (len(arch.layers), arch.vocab, arch.hidden) == (2, 64, 4096)


def test_plain_numbers_say_what_they_assume() -> None:
    """What is not given is listed."""
    plain = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    run = small_run(model={"config": None, **plain})
    assert "model.position_embedding=rope" in estimate(run).assumed


@pytest.mark.parametrize(
    "extra",
    [
        {
            "position_embedding": "learned",
            "normalization": "layernorm",
            "gated_mlp": False,
            "bias": True,
            "dropout": 0.1,
            "max_seq_len": 512,
        },
        {
            "num_experts": 4,
            "top_k": 2,
            "expert_intermediate_size": 32,
            "shared_expert_intermediate_size": 16,
        },
        {"position_embedding": "alibi", "num_key_value_heads": 2, "head_dim": 32},
    ],
)
def test_plain_numbers_describe_many_decoders(extra: dict[str, Any]) -> None:
    """Learned positions, experts, alibi: each runs."""
    plain = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    assert estimate(small_run(model={"config": None, **plain, **extra})).allocated_bytes > 0


def test_a_size_alone_takes_the_nearest_well_known_model() -> None:
    """7B is Llama 2 7B, and says so; the count that was given wins."""
    result = estimate(small_run(model={"config": None, "num_parameters": "7B"}))
    assert any("Llama 2 7B" in line for line in result.assumed)
    assert any("scaled" in line for line in result.warnings)
    assert result.num_parameters == 7 * 10**9


def test_memory_that_is_taken_already_counts() -> None:
    """`available_memory_bytes` is what is free before we start."""
    free = small_run(hardware={"available_memory_bytes": 10**9})
    assert estimate(free).gpu_memory_bytes == 10**9
    assert not estimate(free).fits_on_gpu


@pytest.mark.parametrize(
    ("model", "more", "prompt"),
    [("gpt2", {}, 1016), ("llama3.2-1b", {}, 1024), ("llama3.2-1b", {"max_seq_len": 256}, 248)],
)
def test_a_prompt_that_was_not_asked_for_leaves_room(
    model: str, more: dict[str, int], prompt: int
) -> None:
    """The default prompt is shorter where the model or max_seq_len is too short for it."""
    run = {"model": {"name": model}, "inference": {"engine": "transformers", **more}}
    assert resolve(read(run).file).run.seq == prompt
