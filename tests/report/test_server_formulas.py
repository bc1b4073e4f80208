"""`infer --explain`: every formula of a server gives the bytes that it stands for."""

from __future__ import annotations

import re
from fractions import Fraction
from math import ceil, floor
from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.estimates.explain.explain import Explanation, explain
from gpu_mem_calculator.ledger.formula import SIMULATED, added, numbers_of
from gpu_mem_calculator.report.explanation import explanation_lines
from gpu_mem_calculator.report.lines import plain

H100 = "h100-80gb-sxm"
SERVERS = ["vllm", "sglang", "tgi", "tensorrt_llm", "llamacpp"]
POOLS = {"llamacpp": "KV buffer"}


def _explained(model: str, engine: str, gpus: int = 1, **options: Any) -> Explanation:
    inference = {"engine": engine, **options}
    if gpus > 1 and engine != "llamacpp":
        inference["tensor_parallel_size"] = gpus
    hardware = {"gpu": H100, "num_gpus": gpus}
    return explain(
        full_estimate({"model": {"name": model}, "inference": inference, "hardware": hardware})
    )


def _value(arithmetic: str) -> Fraction:
    """Arithmetic of numbers, + - × / and ceil and floor, without rounding."""
    text = arithmetic.replace(",", "").replace("×", "*")
    text = re.sub(r"\d+(?:\.\d+)?", lambda number: f"Fraction('{number[0]}')", text)
    return Fraction(eval(text, {"Fraction": Fraction, "ceil": ceil, "floor": floor}))


def _assert_formulas(found: Explanation) -> None:
    """Each formula gives its bytes; without one, the source says what was measured or set."""
    for entry in found.entries:
        if entry.formula.startswith(SIMULATED):
            assert entry.numbers == ""
            continue
        assert _value(entry.numbers) == entry.bytes, (entry.name, entry.formula, entry.numbers)
        assert entry.source
    if "×" in found.token_formula:
        text, _, size = found.token_formula.removesuffix(" bytes").rpartition(" = ")
        assert _value(numbers_of(text)) == _value(size)


@pytest.mark.parametrize("engine", SERVERS)
def test_weights_pool_and_activations_have_formulas(engine: str) -> None:
    """Not only numbers: the matrices, the tokens, and the tensors of a forward."""
    found = _explained("llama3.1-8b", engine)
    _assert_formulas(found)
    assert found.token_formula == "32 layers × 2 × 8 KV heads × 128 × 2 bytes = 131,072 bytes"
    largest = {
        kind: max((e for e in found.entries if e.kind == kind), key=lambda e: e.bytes)
        for kind in ("param", "cache", "act")
    }
    for entry in largest.values():
        assert "×" in entry.formula or entry.formula.startswith(SIMULATED), entry


RUNS = {
    "tp": ("llama3.1-70b", 4, {}),
    "experts": ("qwen3-30b-a3b", 2, {}),
    "fp8": ("llama3.1-8b", 1, {"quantization": "fp8"}),
    "fp8 cache": ("llama3.1-8b", 1, {"kv_cache_dtype": "fp8"}),
    "tied head": ("qwen2.5-1.5b", 1, {}),
}


@pytest.mark.parametrize("engine", SERVERS[:-1])
@pytest.mark.parametrize("name", RUNS)
def test_formulas_of_other_runs(engine: str, name: str) -> None:
    """Shards, experts, quantized weights and caches, a head that shares the embedding."""
    model, gpus, options = RUNS[name]
    _assert_formulas(_explained(model, engine, gpus, **options))


VLLM = {
    "awq": ("llama3.1-8b", 1, {"quantization": "awq"}),
    "nf4": ("llama3.1-8b", 1, {"quantization": "nf4"}),
    "latent attention": ("deepseek-v2-lite", 1, {}),
    "windows": ("gemma3-4b", 1, {}),
    "states": ("granite-4.0-h-tiny", 1, {}),
    "adapters": ("llama3.1-8b", 1, {"max_loras": 4, "max_lora_rank": 16}),
    "offload": ("llama3.1-8b", 1, {"cpu_offload_gb": 4}),
    "eager": ("llama3.1-8b", 1, {"enforce_eager": True}),
    "old": ("llama3.1-8b", 1, {"engine_version": "0.6.3"}),
    "given pool": ("llama3.1-8b", 1, {"kv_cache_memory_bytes": 10**9}),
}


@pytest.mark.parametrize("name", VLLM)
def test_formulas_of_vllm(name: str) -> None:
    """Formats with scales, other caches, options that move bytes."""
    model, gpus, options = VLLM[name]
    _assert_formulas(_explained(model, "vllm", gpus, **options))


@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("options", [{}, {"quantization": "q8_0", "kv_cache_dtype": "int8"}])
def test_formulas_of_llama_cpp(gpus: int, options: dict[str, Any]) -> None:
    """Blocks of ggml's types, layers on several GPUs, buffers of the host."""
    _assert_formulas(_explained("llama3.1-8b", "llamacpp", gpus, **options))


def test_when_a_server_has_what() -> None:
    """Weights are loaded first, the pool and graphs come last."""
    alive = {e.kind: list(e.alive) for e in _explained("llama3.1-8b", "vllm").entries if e.alive}
    assert len(alive["param"]) == 3
    assert alive["act"] == ["start-up: profiling", "serving, the cache full"]
    assert alive["cache"] == alive["temp"] == ["serving, the cache full"]


def test_the_report_of_a_server_is_narrow() -> None:
    """At most 80 columns, with the formula of a token, and nothing without bytes."""
    run = {
        "model": {"name": "llama3.1-8b"},
        "inference": {"engine": "vllm"},
        "hardware": {"gpu": H100},
    }
    made = full_estimate(run)
    text = plain(explanation_lines(made, explain(made), show_parts=True))
    assert "KV cache of one token: 32 layers × 2 × 8 KV heads × 128 × 2 bytes" in text
    assert "plain numbers" not in text
    assert " 0 bytes" not in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("formula", "numbers"),
    [
        ("8,192 tokens × (4,096 input + 2 of q, k and v) × 2 bytes", "8,192 × (4,096 + 2) × 2"),
        ("ceil(0.92 × 10 of the card) - 3 weights", "ceil(0.92 × 10) - 3"),
        ("384 MiB of flashinfer × 1,048,576", "384 × 1,048,576"),
        ("8 of Q4_K × 144 / 256 bytes", "8 × 144 / 256"),
    ],
)
def test_words_leave_arithmetic(formula: str, numbers: str) -> None:
    """Without its words a formula is arithmetic."""
    assert numbers_of(formula) == numbers


def test_terms_of_zero_are_left_out() -> None:
    """And one term needs no brackets."""
    assert added([("input", 4096), ("rotated", 0)]) == "4,096 input"


def test_a_token_in_8_bits_has_half_the_bytes() -> None:
    """The formula says so, too."""
    found = _explained("llama3.1-8b", "vllm", kv_cache_dtype="fp8")
    assert found.token_formula == "32 layers × 2 × 8 KV heads × 128 × 1 byte = 65,536 bytes"
