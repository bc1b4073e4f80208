"""How a server spreads over GPUs, and what is said where the sizes do not agree."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.runfile.resolve.serving_split import splits
from gpu_mem_calculator.runfile.text.errors import InputError


def run(engine: str, gpus: int, model: str = "llama3.1-8b", **keys: Any) -> dict[str, Any]:
    """A server on a number of H200s."""
    return {
        "model": {"name": model},
        "inference": {"engine": engine, **keys},
        "hardware": {"gpu": "h200-141gb-sxm", "num_gpus": gpus},
    }


@pytest.mark.parametrize(
    ("data", "sizes"),
    [
        (run("vllm", 8, "deepseek-v3"), (8, 1, 1)),
        (run("vllm", 16, "deepseek-v3"), (8, 2, 1)),
        (run("vllm", 3), (1, 3, 1)),
        (run("vllm", 6, "gpt2"), (6, 1, 1)),
        (run("vllm", 8, data_parallel_size=2), (4, 1, 2)),
        (run("vllm", 8, tensor_parallel_size=4, data_parallel_size=2), (4, 1, 2)),
        (run("vllm", 8, pipeline_parallel_size=2), (4, 2, 1)),
        (run("tgi", 4), (4, 1, 1)),
        (run("sglang", 8, data_parallel_size=8, enable_dp_attention=True), (8, 1, 8)),
        (run("llamacpp", 3), (1, 3, 1)),
    ],
)
def test_gpus_are_spread_by_tensor_parallelism_first(
    data: dict[str, Any], sizes: tuple[int, int, int]
) -> None:
    """Within a node; the rest are pipeline stages. Sizes that are given stay."""
    estimate = full_estimate(data)
    mesh = estimate.resolved.run.mesh
    assert (mesh.tp, mesh.pp, mesh.dp) == sizes
    chosen = [text for text in estimate.result.assumed if "_parallel_size=" in text]
    given = {"tensor_parallel_size", "n_gpu_layers"} & set(data["inference"])
    if data["inference"]["engine"] != "llamacpp" and not given:
        assert chosen
    else:
        assert not chosen


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            run("vllm", 8, tensor_parallel_size=2),
            "hardware.num_gpus=8, but tp × pp × dp = 2; set it to 2, or leave the parallel sizes",
        ),
        (run("transformers", 2), "transformers is modelled on one GPU; set it to 1"),
        (run("tgi", 3), "hardware.num_gpus=3, but tp = 1; set it to 1"),
    ],
)
def test_sizes_that_do_not_agree_get_a_sentence(data: dict[str, Any], said: str) -> None:
    """The value, the rule and a fix."""
    with pytest.raises(InputError, match=r"hardware\.num_gpus") as caught:
        full_estimate(data)
    assert said in caught.value.problems[0]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tgi", "tensorrt_llm", "llamacpp"])
@pytest.mark.parametrize(
    ("model", "keys"),
    [
        ("llama3.1-8b", {"max_seq_len": 8192}),
        ("llama3.1-8b", {"max_seq_len": 8192, "batch_size": 4}),
        ("llama3.1-8b", {"max_seq_len": 8192, "batch_size": 5000}),
        ("llama3.1-405b", {"max_seq_len": 8192}),
    ],
)
def test_the_verdict_counts_users_and_the_headroom_has_its_sign(
    engine: str, model: str, keys: dict[str, int]
) -> None:
    """A server that starts fits if it also holds the users that are asked for."""
    if engine == "tgi":
        keys = {"max_total_tokens" if k == "max_seq_len" else k: v for k, v in keys.items()}
    result = full_estimate(run(engine, 1, model, **keys)).result
    assert result.serving is not None
    asked = keys.get("batch_size")
    assert result.serving.users_asked == asked
    starts = not result.serving.problem
    assert result.fits_on_gpu == (starts and result.serving.users >= (asked or 0))
    assert (result.headroom_bytes >= 0) == result.fits_on_gpu
    assert (result.verdict == "fits") == result.fits_on_gpu


def test_every_width_of_tensor_parallelism_is_tried() -> None:
    """The widest first, down to one."""
    resolved = full_estimate(run("vllm", 4)).resolved
    found = [one["tensor_parallel_size"] for one in splits(resolved.run.arch, resolved.engine, 4)]
    assert found == [4, 2, 1]
