"""Options for a vision tower and for CUDA graphs: what they add and save."""

from __future__ import annotations

from typing import Any

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.runfile.inference_config import ServingResult

TOWER = 676_550_144  # parameters of Qwen2.5-VL's tower


def served(model: str, engine: str = "vllm", **options: Any) -> ServingResult:
    """The answer for a server on H100s."""
    ranks = options.get("tensor_parallel_size", 1)
    run = {
        "model": {"name": model},
        "inference": {"engine": engine, **options},
        "hardware": {"gpu": "h100-80gb-sxm", "num_gpus": ranks},
    }
    result = full_estimate(run).result.serving
    assert result is not None
    return result


def test_a_model_without_its_tower_has_its_weights_less() -> None:
    """language_model_only leaves out the tower's weights and the images of the profile run."""
    whole, text = served("qwen2.5-vl-7b"), served("qwen2.5-vl-7b", language_model_only=True)
    saved = whole.weights_bytes - text.weights_bytes
    assert 2 * TOWER <= saved < 2.02 * TOWER
    assert text.activation_bytes < whole.activation_bytes
    assert text.kv_pool_bytes > whole.kv_pool_bytes + saved


def test_every_rank_has_a_data_parallel_tower() -> None:
    """mm_encoder_tp_mode=data replicates the tower, and shares the images among ranks."""
    shared = served("qwen2.5-vl-7b", tensor_parallel_size=4)
    whole = served("qwen2.5-vl-7b", tensor_parallel_size=4, mm_encoder_tp_mode="data")
    assert 1.4 * TOWER < whole.weights_bytes - shared.weights_bytes < 1.6 * TOWER
    one = served("qwen2.5-vl-7b", mm_encoder_tp_mode="data")
    assert one.weights_bytes == served("qwen2.5-vl-7b").weights_bytes


def test_a_limit_of_images_shortens_the_profile_run() -> None:
    """Two sequences of one image each are two images, however many tokens a step has."""
    step = {"max_num_seqs": 2, "max_num_batched_tokens": 65536}
    many = served("qwen2.5-vl-7b", **step)
    few = served("qwen2.5-vl-7b", **step, limit_mm_per_prompt={"image": 1})
    assert few.activation_bytes < many.activation_bytes


def test_a_mode_of_graphs_captures_a_part() -> None:
    """Pieces and whole steps together are the default; none is the same as no graph at all."""
    graphs = {
        mode: served("llama3-8b", max_num_seqs=64, cudagraph_mode=mode).graph_bytes
        for mode in ("none", "piecewise", "full_decode_only", "full_and_piecewise")
    }
    assert graphs["none"] == 0
    assert 0 < graphs["piecewise"] < graphs["full_and_piecewise"]
    assert 0 < graphs["full_decode_only"] < graphs["full_and_piecewise"]
    assert graphs["full_and_piecewise"] == served("llama3-8b", max_num_seqs=64).graph_bytes


def test_listed_graphs_are_captured() -> None:
    """One graph of a list takes less than SGLang's and vLLM's own lists; too large ones are cut."""
    for engine, key in (("vllm", "cudagraph_capture_sizes"), ("sglang", "cuda_graph_bs")):
        one = served("llama3-8b", engine, **{key: [8]}).graph_bytes
        assert 0 < one < served("llama3-8b", engine).graph_bytes
    cut = served("llama3-8b", cudagraph_capture_sizes=[8, 100_000]).graph_bytes
    assert cut == served("llama3-8b", cudagraph_capture_sizes=[8]).graph_bytes


def test_sglang_kernels_are_those_that_are_asked_for() -> None:
    """The card's own kernels by name change nothing; others have other buffers."""
    usual = served("llama3-8b", "sglang")
    assert served("llama3-8b", "sglang", attention_backend="fa3") != usual
    assert served("llama3-8b", "sglang", attention_backend="fa3").graph_bytes == usual.graph_bytes
    assert served("llama3-8b", "sglang", attention_backend="triton").graph_bytes > usual.graph_bytes
    without = served("llama3-8b", "sglang", disable_prefill_cuda_graph=True)
    assert without.graph_bytes < usual.graph_bytes
