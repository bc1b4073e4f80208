"""The reference calculator's inference: its fields onto the engines' keys, or refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpu_mem_calculator.estimates.fit_verdict import FITS, SHORT
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.web import compat_inference

from .bodies import SERVED, Body, ask, changed


@pytest.mark.parametrize("name", ["huggingface", "vllm", "tgi", "tensorrt_llm", "trtllm", "sglang"])
def test_its_inference_page_works_with_every_engine(name: str) -> None:
    """Its fields; the four parts add up; our result beside them."""
    found = ask("inference/calculate", changed(SERVED, "inference", engine_type=name))
    assert {
        "total_memory_per_gpu_gb",
        "total_memory_all_gpus_gb",
        "breakdown",
        "max_supported_batch_size",
        "estimated_throughput_tokens_per_sec",
        "fits_on_gpu",
        "memory_utilization_percent",
        "result",
    } <= found.keys()
    assert list(found["breakdown"]) == [
        "model_params_gb",
        "kv_cache_gb",
        "activations_gb",
        "overhead_gb",
    ]
    assert all(part > 0 for part in found["breakdown"].values())
    assert sum(found["breakdown"].values()) == pytest.approx(found["total_memory_per_gpu_gb"])
    assert found["breakdown"]["model_params_gb"] == pytest.approx(13.04, abs=0.1)
    assert 20 < found["max_supported_batch_size"] < 60
    assert found["result"]["run"]["inference"]["batch_size"] == 32
    assert found["estimated_throughput_tokens_per_sec"] is None
    assert "no GPU given (add --gpu NAME)" in found["no_throughput"]


def test_what_its_page_leaves_untouched_is_left_out_and_said() -> None:
    """Only where the engine has it and it is not modelled."""
    found = ask("inference/calculate", changed(SERVED, "inference", engine_type="tgi"))
    assert found["left_out"] == ["inference.max_batch_total_tokens"]
    assert ask("inference/calculate", SERVED)["left_out"] == []


@pytest.mark.parametrize(
    ("engine", "given", "ours"),
    [
        ("vllm", {"kv_cache_quantization": "fp8"}, {"kv_cache_dtype": "fp8"}),
        ("vllm", {"vllm_quantization": "gptq"}, {"quantization": "gptq_int4"}),
        (
            "vllm",
            {"max_num_seqs": 64, "enforce_eager": True},
            {"max_num_seqs": 64, "enforce_eager": True},
        ),
        (
            "tgi",
            {"tgi_quantize": "eetq", "tgi_dtype": "float16"},
            {"quantization": "int8", "dtype": "fp16"},
        ),
        ("tgi", {"tgi_quantize": "bitsandbytes-nf4"}, {"quantization": "nf4"}),
        (
            "tgi",
            {"max_total_tokens": 3000, "max_input_tokens": 1000},
            {"max_total_tokens": 3000, "max_input_tokens": 1000},
        ),
        (
            "tensorrt_llm",
            {"trt_max_batch_size": 16, "trt_max_beam_width": 2},
            {"max_num_seqs": 16, "max_beam_width": 2, "max_seq_len": 2048},
        ),
        (
            "sglang",
            {"chunk_size": 4096, "max_running_requests": 32, "disable_radix_cache": True},
            {"chunked_prefill_size": 4096, "max_num_seqs": 32, "disable_radix_cache": True},
        ),
        ("huggingface", {"batch_size": 2}, {"batch_size": 2, "prompt_len": 4088}),
        ("sglang", {"max_total_tokens": 50_000}, {"max_total_tokens": 50_000}),
    ],
)
def test_fields_become_the_engines_keys(engine: str, given: Body, ours: Body) -> None:
    """And act: the run that was estimated has them."""
    body = changed(SERVED, "inference", engine_type=engine, **given)
    run = ask("inference/calculate", body)["result"]["run"]["inference"]
    assert {key: run[key] for key in ours} == ours


@pytest.mark.parametrize(
    ("given", "ranks"),
    [
        ({"num_shard": 2}, 2),
        ({"sharded": True}, 2),
        ({"sharded": True, "num_shard": 2}, 2),
        ({"tensor_parallel_size": 2}, 2),
        ({"tensor_parallel_size": 2, "num_shard": 2}, 2),
    ],
)
def test_shards_are_ranks(given: Body, ranks: int) -> None:
    """TGI's own words for tensor parallelism."""
    body = changed(changed(SERVED, "inference", engine_type="tgi", **given), "hardware", num_gpus=2)
    found = ask("inference/calculate", body)
    assert found["result"]["run"]["inference"]["tensor_parallel_size"] == ranks
    assert found["total_memory_all_gpus_gb"] == 2 * found["total_memory_per_gpu_gb"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"use_kv_cache": False}, "inference.use_kv_cache=false is not modelled for vLLM"),
        ({"enable_streaming": True}, "inference.enable_streaming=true is not modelled for vLLM"),
        ({"vllm_quantization": "squeezellm"}, "'squeezellm' is not modelled for vLLM; use one of"),
        ({"tgi_quantize": "awq"}, "inference.tgi_quantize='awq' is for TGI, not for vLLM"),
        ({"trt_max_batch_size": 64}, "is for TensorRT-LLM, not for vLLM; leave it out"),
        ({"chunk_size": 4096}, "inference.chunk_size=4096 is for SGLang, not for vLLM"),
        ({"max_total_tokens": 50}, "inference.max_total_tokens is not an option of vLLM"),
        ({"engine_type": "sglang", "enable_torch_compile": True}, "enable_torch_compile=true"),
        ({"engine_type": "sglang", "attention_backend": "triton"}, "attention_backend='triton'"),
        ({"engine_type": "tgi", "max_batch_total_tokens": 9000}, "max_batch_total_tokens=9000"),
        ({"engine_type": "tgi", "tgi_quantize": "exl2"}, "tgi_quantize='exl2' is not modelled"),
        ({"engine_type": "tgi", "tensor_parallel_size": 2, "num_shard": 4}, "leave one out"),
        ({"engine_type": "tensorrt_llm", "trt_max_input_len": 99}, "trt_max_input_len=99"),
        ({"engine_type": "tensorrt_llm", "max_seq_len": 4096}, "leave one out"),
        ({"engine_type": "huggingface", "gpu_memory_utilization": 0.5}, "not modelled"),
        ({"engine": "tgi"}, "are the same thing"),
        ({"engine_type": "vlm"}, "did you mean 'vllm'"),
        ({"speling": 1}, "inference.speling is not a known key"),
        ({"swap_space_gb": 4}, "swap_space"),
        ({"tensor_parallel_size": 2}, "hardware.num_gpus=1, but tp × pp × dp = 2"),
    ],
)
def test_what_is_not_modelled_is_refused(given: Body, said: str) -> None:
    """Never ignored: a sentence with the field, its value and what to do."""
    with pytest.raises(InputError) as raised:
        ask("inference/calculate", changed(SERVED, "inference", **given))
    assert said in str(raised.value)


def test_untouched_values_mean_something_without_the_whole_form() -> None:
    """A client that sends one field means it."""
    body = {
        "model": {"name": "llama2-7b"},
        "inference": {"engine_type": "vllm", "trt_max_batch_size": 2048},
    }
    with pytest.raises(InputError, match="is for TensorRT-LLM"):
        ask("inference/calculate", body)


def test_throughput_where_the_card_is_known() -> None:
    """An upper bound for the sequences that are asked for; more of them are faster together."""
    card = {**SERVED, "hardware": {"gpu": "h100-80gb-sxm"}}
    few = ask("inference/calculate", changed(card, "inference", batch_size=1))
    many = ask("inference/calculate", changed(card, "inference", batch_size=8))
    one, eight = (f["estimated_throughput_tokens_per_sec"] for f in (few, many))
    assert 100 < one < 300  # 13 GiB read at 3.35 TB/s for each token
    assert one < eight < 8 * one
    assert few["no_throughput"] == ""


def test_a_body_without_inference() -> None:
    """A sentence with an example."""
    for body in ({}, [], {"model": {"name": "gpt2"}}):
        with pytest.raises(InputError, match="engine_type"):
            ask("inference/calculate", body)


@pytest.mark.parametrize("fitting", range(8))
def test_the_most_sequences_are_found_up_to_the_bound(
    fitting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger allows 7 sequences, the verdicts `fitting` of them."""
    module = compat_inference
    monkeypatch.setattr(module, "matrix", lambda *_: SimpleNamespace(most=[7]))
    monkeypatch.setattr(module, "replace", lambda one, **fields: SimpleNamespace(**fields))
    monkeypatch.setattr(
        module,
        "resolved_verdict",
        lambda resolved: FITS if resolved.run.batch <= fitting else SHORT,
    )
    estimate: Any = SimpleNamespace(served=(), resolved=SimpleNamespace(run=None))
    assert module._most_sequences(estimate, 100) == fitting
