"""Cached parts of one estimate do not change the next."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import msgspec
import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.estimates.explain.explain import explain
from gpu_mem_calculator.ledger.remember import forget
from tests.conftest import small_run
from tests.corpus import sampled

WINDOW = {
    "model_type": "mistral",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 1024,
    "max_position_embeddings": 2048,
    "sliding_window": 256,
}
TOKENS = ({"batch_size": 1, "seq_len": 128}, {"batch_size": 3, "seq_len": 512})
CHANGES: list[dict[str, Any]] = [
    {},
    {"training": {"gradient_accumulation_steps": 2, "activation_checkpointing": "full"}},
    {"training": {"lora": {"r": 4}}},
    {"model": {"num_parameters": "5M"}},
]
ENGINES: list[dict[str, Any]] = [
    {"type": "pytorch_ddp"},
    {"type": "deepspeed", "zero_stage": 2},
    {"type": "deepspeed", "zero_stage": 3},
    {"type": "fsdp"},
    {"type": "fsdp", "sharding_strategy": "shard_grad_op"},
    {"type": "fsdp", "cpu_offload": True},
    {"type": "megatron_lm"},
]


def answer(run: dict[str, Any]) -> list[bytes]:
    """The result, and each entry with its formula in letters."""
    full = full_estimate(run, replay=False)
    return [msgspec.json.encode(full.result), msgspec.json.encode(explain(full))]


@pytest.mark.parametrize(
    "engine", sampled(ENGINES, keep=3), ids=lambda e: "-".join(map(str, e.values()))
)
def test_an_estimate_is_the_same_whatever_came_before(engine: dict[str, Any]) -> None:
    """Runs that share a model and differ in tokens or in one choice, in a mixed order."""
    runs = []
    for change in CHANGES:
        if engine["type"] == "megatron_lm" and "lora" in change.get("training", {}):
            continue
        for tokens in TOKENS:
            sections = {"model": {"config": WINDOW}, "training": tokens}
            for name, values in change.items():
                sections[name] = {**sections.get(name, {}), **values}
            runs.append(small_run(engine=engine, **sections))
    alone = []
    for run in runs:
        forget()
        alone.append(answer(run))
    forget()
    for order in (runs, runs[::-1]):
        for run in order:
            assert answer(run) == alone[runs.index(run)]
    assert all(one != other for one, other in permutations(alone, 2))
