"""A kind's bytes in words: the arithmetic that a reader does gives the ledger's bytes."""

from __future__ import annotations

import math
import re

import pytest

from gpu_mem_calculator.estimates.calculator import STEP, Estimate, full_estimate
from gpu_mem_calculator.estimates.explain.explain import explain
from gpu_mem_calculator.estimates.explain.worked_formula import (
    FormulaTerm,
    kind_terms,
    parameter_product,
)
from gpu_mem_calculator.ledger.formula import numbers_of
from gpu_mem_calculator.ledger.ledger import ACT, CACHE, COMM, GRAD, OPTIM, PARAM
from gpu_mem_calculator.ledger.units import GIB

UNITS = {"": 1, "K": 1e3, "M": 1e6, "B": 1e9}
FACTOR = re.compile(r"([\d,.]+) ?([KMB]\b)?")


def estimate(**sections: object) -> Estimate:
    """The ledger of a run on H100s, without a replay."""
    hardware = {"gpu": "h100-80gb-sxm", "num_gpus": sections.pop("num_gpus", 1)}
    return full_estimate({"hardware": hardware, **sections}, replay=False)


def terms(made: Estimate, kind: str) -> list[FormulaTerm]:
    """The terms of a kind at the peak."""
    return kind_terms(made, kind, made.ledger.peak_instant(phases=STEP).name)


def computed(words: str) -> tuple[float, float]:
    """Both sides of a product in words, in bytes: what a reader computes, and what it says."""
    product, _, size = re.split(r" ([=≈]) ", words)
    above, _, below = product.partition(" / ")
    found = [float(number.replace(",", "")) * UNITS[unit] for number, unit in FACTOR.findall(above)]
    ranks = FACTOR.findall(below)
    shared = float(ranks[0][0]) if ranks else 1
    return math.prod(found) / shared, float(size.split()[0].replace(",", "")) * GIB


LLAMA = {"model": {"name": "llama2-7b"}, "training": {"seq_len": 2048}, "num_gpus": 8}
ZERO3 = LLAMA | {"engine": {"type": "deepspeed", "zero_stage": 3}}
QLORA = {
    "model": {"name": "llama3.1-8b"},
    "training": {"seq_len": 2048, "lora": {"r": 16}, "quantization": "nf4"},
    "engine": {"type": "pytorch_ddp"},
}
GPT2 = {
    "model": {"name": "gpt2"},
    "training": {"seq_len": 1024, "batch_size": 8},
    "engine": {"type": "pytorch_ddp"},
    "num_gpus": 2,
}
SERVER = {
    "model": {"name": "llama3.1-8b"},
    "inference": {"engine": "vllm", "tensor_parallel_size": 2},
    "num_gpus": 2,
}
FSDP = LLAMA | {"engine": {"type": "fsdp"}}
PIPELINE = {
    "model": {"name": "llama2-7b"},
    "training": {"seq_len": 2048, "gradient_accumulation_steps": 4},
    "engine": {"type": "megatron_lm"},
    "parallelism": {"pipeline_parallel_size": 2},
    "num_gpus": 2,
}
CASES = [
    (ZERO3, PARAM, "parameter shards: 6.74 B parameters × 2 bytes / 8 GPUs = 1.57 GiB"),
    (ZERO3, GRAD, "6.74 B parameters × 2 bytes / 8 GPUs = 1.57 GiB"),
    (ZERO3, OPTIM, "6.74 B parameters × 12 bytes / 8 GPUs = 9.41 GiB"),
    (ZERO3, ACT, "kept for backward: 32 layers × 2,048 tokens × 186,504 bytes = 11.38 GiB"),
    (PIPELINE, OPTIM, "3.37 B parameters of this GPU × 12 bytes = 37.65 GiB"),
    (PIPELINE, ACT, "kept for backward: 31 saved layers × 2,048 tokens × 131,720 bytes = 7.79 GiB"),
    (FSDP, PARAM, "sharded parameters: 6.74 B parameters × 4 bytes / 8 GPUs = 3.14 GiB"),
    (QLORA, PARAM, "LoRA adapters: 6.82 M trained parameters × 4 bytes = 0.03 GiB"),
    (QLORA, OPTIM, "6.82 M trained parameters × 8 bytes = 0.05 GiB"),
    (GPT2, ACT, "kept for backward: 12 layers × 8 × 1,024 tokens × 67,840 bytes = 6.21 GiB"),
    (GPT2, COMM, "gradient buckets: 124 M parameters × 4 bytes = 0.46 GiB"),
    (SERVER, PARAM, "8.03 B parameters × 2 bytes / 2 GPUs = 7.51 GiB"),
]


@pytest.mark.parametrize(("run", "kind", "words"), CASES)
def test_words(run: dict[str, object], kind: str, words: str) -> None:
    """A term has the numbers put in, and they give the figure that it says."""
    made = estimate(**run)
    assert words in [term.words for term in terms(made, kind)]
    by_hand, said = computed(words.rpartition(": ")[2])
    assert by_hand == pytest.approx(said, rel=0.005, abs=0.006 * GIB)


def test_terms_are_the_kinds_bytes() -> None:
    """The terms of a kind add up to its bytes, but for the smallest."""
    for run in (ZERO3, QLORA, GPT2, SERVER):
        made = estimate(**run)
        parts = made.ledger.parts(made.ledger.peak_instant(phases=STEP))
        for kind in (PARAM, GRAD, OPTIM, ACT, COMM, CACHE):
            total = sum(term.bytes for term in terms(made, kind))
            assert total == pytest.approx(int(parts.get(kind, 0)), rel=0.006)


def test_a_servers_cache_is_tokens_times_bytes() -> None:
    """The pool of a server, by the token."""
    made = estimate(**SERVER)
    serving = made.result.serving
    assert serving is not None
    (term,) = terms(made, CACHE)
    assert f"{serving.kv_tokens:,} tokens × {serving.kv_bytes_per_token:,} bytes =" in term.product


def test_explained_entries_have_the_same_words() -> None:
    """An explained entry has the arithmetic of its copies at the peak."""
    found = {entry.name: entry.words for entry in explain(estimate(**ZERO3)).entries}
    assert found["parameter shards"] == "6.74 B parameters × 2 bytes / 8 GPUs = 1.57 GiB"
    kept = "32 layers × 2,048 tokens × 186,504 bytes = 11.38 GiB"
    assert found["dense layers: kept for backward"] == kept
    assert found["gradient bucket"] == ""


@pytest.mark.parametrize(
    ("each", "found"), [(2, 2), (4, 4), (6, 6), (8, 8), (10, 10), (12, 12), (5, None), (20, None)]
)
def test_optimizer_states_have_2_to_12_bytes_a_parameter(each: int, found: int | None) -> None:
    """Even numbers, as moments, main weights and gradients of 2 or 4 bytes add up."""
    made = estimate(**LLAMA)
    product = parameter_product(made, OPTIM, each * made.result.num_parameters)
    assert (product and product.bytes_each) == found


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_activations_of_a_server_have_their_own_factors(engine: str) -> None:
    """Their names are those of the entry's formula, and they multiply to the figure."""
    run = SERVER | {"inference": {"engine": engine, "tensor_parallel_size": 2}}
    found = [one for one in terms(estimate(**run), ACT) if one.product]
    logits = [one for one in found if "logits" in one.name]
    assert logits
    for one in found:
        arithmetic = numbers_of(one.product.removesuffix(" =")).replace(",", "").replace("×", "*")
        assert eval(arithmetic) == one.bytes, one
    rows = "sequences" if engine == "vllm" else "rows"
    assert all(f" {rows} × 128,256 logits × " in one.product for one in logits), logits
