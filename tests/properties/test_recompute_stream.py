"""Under every recompute policy the highest point of the stream is the ledger's peak."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read
from tests.conftest import small_run
from tests.streams import highest, rolled_and_written

STEP = ("forward", "backward", "optimizer")
OP = {"mode": "selective", "selective_ac_option": "op"}
POLICIES: tuple[Any, ...] = (
    OP,
    {**OP, "early_stop": True},
    {"mode": "full"},
    "every_2nd_layer",
    {"every_n_layers": 3},
    "attention_kept",
)
MODULES: tuple[Any, ...] = tuple(
    {"activation_checkpointing_target": names}
    for names in (["mlp"], ["attention"], ["attention", "mlp"])
)
OFFLOADED: tuple[Any, ...] = ("full_offloaded", {"offload": True, "every_n_layers": 2})
ENGINES: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("pytorch_ddp", {}, {"precision": "bf16_mixed"}),
    ("pytorch_ddp", {}, {"precision": "bf16_pure", "attention": "eager"}),
    ("fsdp", {}, {"gradient_accumulation_steps": 2}),
    ("deepspeed", {"zero_stage": 2}, {}),
)


def full(method: str, layers: int) -> dict[str, Any]:
    """Megatron's full recompute."""
    keys = {"recompute_granularity": "full", "recompute_method": method}
    return {**keys, "recompute_num_layers": layers}


MEGATRON = (
    full("block", 1),
    full("uniform", 2),
    full("uniform", 3),
    *({"recompute_modules": names} for names in (["layernorm"], ["mlp"])),
    {"recompute_modules": ["core_attn", "layernorm", "mlp"]},
)


def peaks(run: dict[str, Any], stage: int = 0) -> tuple[int, int]:
    """The ledger's peak and the stream's."""
    ledger, asked = rolled_and_written(resolve(read(run).file), stage)
    return int(ledger.peak(phases=STEP)), highest(asked)


@pytest.mark.parametrize("policy", [*POLICIES, *OFFLOADED], ids=str)
@pytest.mark.parametrize(("engine", "options", "training"), ENGINES)
def test_engines_of_transformers(
    engine: str, options: dict[str, Any], training: dict[str, Any], policy: Any
) -> None:
    """One GPU's precision, autocast, sharding and ZeRO's buckets."""
    if policy in OFFLOADED and engine == "deepspeed":
        return  # refused: it has its own
    if policy == "attention_kept" and "attention" in training:
        return  # refused: eager attention has no kernel to keep
    run = small_run(engine, engine=options, training={**training, "recompute": policy})
    ledger, stream = peaks(run)
    assert ledger == stream


@pytest.mark.parametrize("policy", MODULES, ids=str)
@pytest.mark.parametrize("engine", ["fsdp", "deepspeed"])
def test_checkpoints_around_modules(engine: str, policy: Any) -> None:
    """Each runs forward again when backward reaches it."""
    ledger, stream = peaks(small_run(engine, training={"recompute": policy}))
    assert ledger == stream


@pytest.mark.parametrize("policy", MEGATRON, ids=str)
@pytest.mark.parametrize(
    "parallelism",
    [
        {"tensor_parallel_size": 2, "sequence_parallel": True},
        {"pipeline_parallel_size": 2},
        {"pipeline_parallel_size": 2, "virtual_pipeline_size": 2},
    ],
    ids=str,
)
def test_megatron(parallelism: dict[str, Any], policy: Any) -> None:
    """Stages with several micro-batches in flight, and chunks."""
    run = small_run(
        "megatron_lm",
        engine={"transformer_implementation": "local"},
        training={"recompute": policy, "gradient_accumulation_steps": 4},
        parallelism=parallelism,
    )
    for stage in range(parallelism.get("pipeline_parallel_size", 1)):
        ledger, stream = peaks(run, stage)
        assert ledger == stream


EXPERTS = {
    "model_type": "mixtral",
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize("names", [["moe"], ["moe", "layernorm"], ["core_attn", "moe"]], ids=str)
def test_experts_under_a_checkpoint(names: list[str]) -> None:
    """Their dispatcher refers to the graph: their input and its gradient stay."""
    run = small_run(
        "megatron_lm",
        engine={"transformer_implementation": "local"},
        training={"recompute": {"recompute_modules": names}, "gradient_accumulation_steps": 2},
        model={"config": EXPERTS},
    )
    ledger, stream = peaks(run)
    assert ledger == stream
    held = resolve(read(run).file).engine.ledger(resolve(read(run).file).run).entries
    assert any("held by the dispatcher" in entry.name for entry in held)
