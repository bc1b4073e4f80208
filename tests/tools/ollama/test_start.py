"""The command with which Ollama starts what was estimated."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.catalog.model_names import spelled
from gpu_mem_calculator.estimates.calculator import Estimate, full_estimate
from gpu_mem_calculator.tools.ollama.read import read_name
from gpu_mem_calculator.tools.ollama.start import library_name
from gpu_mem_calculator.tools.read import read

OPTIONS: list[dict[str, Any]] = [
    {},
    {"max_seq_len": 8192},
    {"n_parallel": 2},
    {"max_seq_len": 32768, "max_num_seqs": 4, "kv_cache_dtype": "int8", "flash_attn": True},
    {"cache_type_k": "q4_0", "cache_type_v": "q4_0", "quantization": "q8_0"},
    {"flash_attn": False, "fit": False},
    {"fit_target": 2048},
]


def _served(model: str, card: str = "4090", **options: Any) -> Estimate:
    run = {"model": {"name": model}, "inference": {"engine": "ollama", **options}}
    return full_estimate({**run, "hardware": {"gpu": card}})


@pytest.mark.parametrize("model", ["llama3.1-8b", "qwen3-8b", "deepseek-r1-distill-qwen-14b"])
@pytest.mark.parametrize("options", OPTIONS)
def test_the_command_reads_back_as_the_same_server(model: str, options: dict[str, Any]) -> None:
    """On a card of which Ollama's defaults are others, too."""
    made = _served(model, **options)
    command = made.result.serving.command if made.result.serving else ""
    assert " ollama run " in command
    for card in ("4090", "h100"):
        found = read(command)
        again = full_estimate({**found.run, "hardware": {"gpu": card}})
        here = _served(model, card, **{"max_seq_len": _tokens(made), **options})
        assert again.result.serving == here.result.serving
        assert again.result.allocated_bytes == here.result.allocated_bytes


def _tokens(made: Estimate) -> int:
    return int(made.resolved.run.options["max_seq_len"])


@pytest.mark.parametrize(
    ("model", "kind", "name"),
    [
        ("llama3.1-8b", "Q4_K_M", "llama3.1:8b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "Q8_0", "llama3.1:8b-q8_0"),
        ("qwen3-30b-a3b", "Q4_K_M", "qwen3:30b-a3b"),
        ("llama2-7b", "Q4_0", "llama2:7b"),
        ("gpt-oss-20b", "BF16", "gpt-oss:20b"),
        ("gpt2", "F16", ""),
    ],
)
def test_the_library_has_a_name_of_its_own(model: str, kind: str, name: str) -> None:
    """The one that is read as the same model in the same type."""
    assert library_name(model, kind) == name
    if name:
        found = read_name(name)
        assert (spelled(found.model), found.quantization) == (spelled(model), kind)


OTHERS = [
    {"n_gpu_layers": 10},
    {"n_cpu_moe": 2},
    {"kv_unified": True},
    {"ollama_version": "0.3.8", "max_seq_len": 8192},
]


@pytest.mark.parametrize("options", OTHERS)
def test_what_no_variable_says_is_llama_servers(options: dict[str, Any]) -> None:
    """A Modelfile's parameters, options that Ollama does not have, and variables that the release
    does not have.
    """
    serving = _served("llama3.1-8b", **options).result.serving
    assert serving is not None
    assert serving.command.startswith("llama-server ")


def test_llama_cpp_alone_keeps_its_command() -> None:
    """Where Ollama does not start it."""
    plain = full_estimate({"model": {"name": "qwen3-8b"}, "inference": {"engine": "llamacpp"}})
    assert plain.result.serving is not None
    assert plain.result.serving.command.startswith("llama-server ")
