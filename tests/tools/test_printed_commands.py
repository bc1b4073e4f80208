"""The command that is printed for a server is read back as a server of the same bytes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_mem_calculator.estimates.calculator import Estimate, full_estimate
from gpu_mem_calculator.run.served import checkpoint_note
from gpu_mem_calculator.run.weights.recipes import RECIPES
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.serving.tensorrt_llm.command import FILE, extra_options
from gpu_mem_calculator.tools.launchers.launch import read_launch
from gpu_mem_calculator.tools.reading.named_files import NamedFiles
from gpu_mem_calculator.tools.reading.reading import Reading
from gpu_mem_calculator.tools.reading.tools import read_command

MODEL = "llama3.2-1b"
CHOICES: dict[str, dict[str, list[Any]]] = {
    "llamacpp": {
        "max_seq_len": [512, 8192],
        "n_gpu_layers": [0, 7, 99],
        "n_batch": [256, 4096],
        "n_ubatch": [128, 512],
        "n_parallel": [1, 3],
        "kv_unified": [True],
        "cache_type_k": ["q8_0", "bf16"],
        "flash_attn": [True],
        "no_kv_offload": [True],
        "quantization": ["q8_0", "q4_0", "iq4_xs", "none"],
    },
    "tgi": {
        "tensor_parallel_size": [2],
        "dtype": ["fp16"],
        "quantization": ["fp8", "int8", "nf4"],
        "kv_cache_dtype": ["fp8"],
        "max_input_tokens": [100],
        "max_total_tokens": [200, 4000],
        "max_num_batched_tokens": [512],
        "gpu_memory_utilization": [0.5],
        "cuda_graphs": [[0], [1, 2]],
        "enable_prefill_logprobs": [True],
        "max_num_seqs": [16],
    },
    "tensorrt_llm": {
        "tensor_parallel_size": [2],
        "pipeline_parallel_size": [2],
        "max_seq_len": [512, 8192],
        "max_num_seqs": [16, 64],
        "max_num_batched_tokens": [2048],
        "gpu_memory_utilization": [0.5],
        "kv_cache_dtype": ["fp8"],
        "max_total_tokens": [9000],
        "block_size": [64],
        "enforce_eager": [True],
        "dtype": ["fp16"],
    },
}


def estimate(engine: str, section: dict[str, Any]) -> Estimate:
    """The estimate of a server."""
    gpus = section.get("tensor_parallel_size", 1) * section.get("pipeline_parallel_size", 1)
    hardware = {"gpu": "h100-80gb-sxm", "num_gpus": gpus}
    inference = {"engine": engine, **section}
    return full_estimate({"model": {"name": MODEL}, "inference": inference, "hardware": hardware})


def read_back(found: Estimate, folder: Path) -> Reading:
    """What the printed command means, with the model's name in the place of the placeholder."""
    assert found.result.serving is not None
    run = found.resolved.run
    kind = str(run.options["quantization"])
    file = f"{MODEL}-{'f16' if kind == 'none' else kind}.gguf"
    words = shlex.split(found.result.serving.command)
    words = [
        file if word.endswith(".gguf") else MODEL if word == "MODEL" else word for word in words
    ]
    if FILE in words:
        (folder / FILE).write_text("\n".join(extra_options(run)), encoding="utf-8")
    return read_command(read_launch(words, NamedFiles(folder)))


@pytest.mark.parametrize("quantization", ["none", *RECIPES, "q4_k_m", "q8_0"])
@pytest.mark.parametrize("engine", ["vllm", "sglang", *CHOICES])
def test_a_printed_command_serves_the_weights_that_were_estimated(
    engine: str, quantization: str, tmp_path: Path
) -> None:
    """Where a server does not quantize the model itself, the command asks for a checkpoint."""
    try:
        first = estimate(engine, {"quantization": quantization})
    except InputError:
        pytest.skip(f"{engine} has no {quantization}")
    assert first.result.serving is not None
    if note := checkpoint_note(first.result.serving.command):
        assert quantization.upper() in note
        return
    back = full_estimate(read_back(first, tmp_path).run | {"hardware": {"gpu": "h100-80gb-sxm"}})
    assert back.result.serving is not None
    assert back.result.serving.weights_bytes == first.result.serving.weights_bytes


@pytest.mark.parametrize("engine", CHOICES)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_printed_command_means_the_same_bytes(
    engine: str, data: st.DataObject, tmp_path: Path
) -> None:
    """No option is lost between a run and its command, or between the command and its reading."""
    options = {key: st.sampled_from(values) for key, values in CHOICES[engine].items()}
    section = data.draw(st.fixed_dictionaries({}, optional=options))
    if engine == "tgi" and "max_total_tokens" not in section:
        section.pop("max_input_tokens", None)
    first = estimate(engine, section)
    reading = read_back(first, tmp_path)
    assert not reading.problems
    hardware = {"gpu": "h100-80gb-sxm", **reading.run.get("hardware", {})}
    second = full_estimate(reading.run | {"hardware": hardware})
    assert second.result.needs_bytes == first.result.needs_bytes
    assert second.result.serving is not None
    assert first.result.serving is not None
    assert second.result.serving.kv_pool_bytes == first.result.serving.kv_pool_bytes
