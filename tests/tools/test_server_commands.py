"""A command that is written for a run means the run: it is read back as the same section."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.tools.launchers.launch import read_launch
from gpu_mem_calculator.tools.reading.named_files import NamedFiles
from gpu_mem_calculator.tools.reading.tools import read_command
from tests.tools.reading_of import reading_of

SHARED: dict[str, list[Any]] = {
    "max_seq_len": [1024, 4096],
    "pipeline_parallel_size": [2],
    "dtype": ["fp16", "fp32"],
    "kv_cache_dtype": ["fp8", "bf16"],
    "gpu_memory_utilization": [0.5, 0.875],
    "max_num_seqs": [8, 100],
    "enforce_eager": [True],
    "max_lora_rank": [16, 64],
    "cpu_offload_gb": [1.0],
    "quantization": ["fp8"],
}
CHOICES: dict[str, dict[str, list[Any]]] = {
    "vllm": SHARED
    | {
        "tensor_parallel_size": [1, 2],
        "max_num_batched_tokens": [2048, 8192],
        "block_size": [32],
        "enable_prefix_caching": [True, False],
        "enable_chunked_prefill": [True],
        "max_cudagraph_capture_size": [64],
        "kv_cache_memory_bytes": [10**10],
        "cudagraph_capture_sizes": [[1, 8]],
        "cudagraph_mode": ["none", "piecewise", "full", "full_decode_only"],
        "language_model_only": [True],
        "mm_encoder_tp_mode": ["data"],
        "limit_mm_per_prompt": [{"image": 2}],
        "use_flashinfer_sampler": [True, False],
    },
    "sglang": SHARED
    | {
        "tensor_parallel_size": [1, 2],
        "max_total_tokens": [100_000],
        "chunked_prefill_size": [512, 4096],
        "cuda_graph_max_bs": [8],
        "cuda_graph_bs": [[1, 8]],
        "disable_prefill_cuda_graph": [True],
        "attention_backend": ["fa3", "flashinfer", "triton", "trtllm"],
        "page_size": [16],
        "disable_radix_cache": [True],
        "hicache_ratio": [1.5],
    },
}
# Choices that a pair of keys decides.
PAIRS: dict[str, list[dict[str, Any]]] = {
    "vllm": [
        {},
        {"speculative_method": "ngram", "num_speculative_tokens": 3},
        {
            "speculative_method": "draft_model",
            "speculative_model": "llama3.2-1b",
            "num_speculative_tokens": 2,
        },
        {"data_parallel_size": 2},
        {"max_loras": 3, "max_lora_rank": 16},
    ],
    "sglang": [
        {},
        {
            "speculative_method": "standalone",
            "speculative_model": "llama3.2-1b",
            "num_speculative_tokens": 4,
        },
        {"data_parallel_size": 2},
        {"max_loras": 3, "max_lora_rank": 16},
    ],
}


def sections(engine: str) -> st.SearchStrategy[dict[str, Any]]:
    """Random `inference` sections."""
    options = {key: st.sampled_from(values) for key, values in CHOICES[engine].items()}
    some = st.fixed_dictionaries({}, optional=options)
    return st.tuples(some, st.sampled_from(PAIRS[engine])).map(lambda both: both[0] | both[1])


def gpus(section: dict[str, Any]) -> int:
    """GPUs of a section."""
    sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    ranks = 1
    for key in sizes:
        ranks *= section.get(key, 1)
    return ranks


def read_back(engine: str, section: dict[str, Any], model: str) -> dict[str, Any]:
    """The section that the printed command of a run means."""
    run = {
        "model": {"name": model},
        "inference": {"engine": engine, **section},
        "hardware": {"gpu": "h200", "num_gpus": gpus(section)},
    }
    serving = full_estimate(run).result.serving
    assert serving is not None
    words = shlex.split(serving.command)
    reading = read_command(read_launch(words, NamedFiles(None)))
    assert not reading.problems
    assert not reading.limits
    assert reading.run["hardware"]["num_gpus"] == gpus(section)
    found: dict[str, Any] = reading.run["inference"]
    return found


@pytest.mark.parametrize("engine", CHOICES)
@settings(max_examples=40)
@given(data=st.data())
def test_a_written_command_is_read_as_its_run(engine: str, data: st.DataObject) -> None:
    """Reading the command of a run gives the run's own keys; defaults may be left out."""
    section = data.draw(sections(engine))
    if section.get("quantization") and section.get("cpu_offload_gb"):
        section.pop("cpu_offload_gb")
    found = read_back(engine, section, "llama3-8b")
    wanted = {"engine": engine, "tensor_parallel_size": 1, **section}
    defaults = {"bf16", 0, 1}
    for key in wanted.keys() | found.keys():
        if found.get(key) != wanted.get(key):
            assert key not in found, key
            assert isinstance(wanted[key], str | bool | int), key
            assert wanted[key] in defaults, (key, wanted[key])


def test_experts_are_read_back() -> None:
    """Whole experts on each rank: a switch of vLLM's, a size of SGLang's."""
    experts = {"tensor_parallel_size": 4, "expert_parallel_size": 4}
    for engine in CHOICES:
        found = read_back(engine, experts, "qwen3-30b-a3b")
        assert found == {"engine": engine, **experts}
    attention = experts | {"data_parallel_size": 4, "enable_dp_attention": True}
    run = {"model": {"name": "qwen3-30b-a3b"}, "inference": {"engine": "sglang", **attention}}
    serving = full_estimate(run | {"hardware": {"gpu": "h200", "num_gpus": 4}}).result.serving
    assert serving is not None
    words = read_launch(shlex.split(serving.command), NamedFiles(None))
    assert read_command(words).run["inference"] == {"engine": "sglang", **attention}


def test_the_beginning_of_another_name_is_enough() -> None:
    """As argparse has it: --tensor-parallel-size is another name of SGLang's --tp-size."""
    line = "python -m sglang.launch_server --model-path qwen2.5-0.5b --tensor-para 2"
    assert reading_of(line).run["inference"]["tensor_parallel_size"] == 2
