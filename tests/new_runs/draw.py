"""Draws runs of the newer features at random, to be predicted once and then measured: losses,
Liger's kernels, recompute policies, FSDP 1, torchtitan's code, Megatron's pipelines.

python -m tests.new_runs.draw > tests/new_runs/drawn.jsonl
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.lab.measure.program import program
from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.runfile.text.errors import InputError

SEED, COUNT = 20261118, 75
MOST = 55 * GIB
SMALL = [
    *("llama3.2-1b", "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen3-0.6b", "qwen3-1.7b"),
    *("gemma2-2b", "gemma3-1b", "olmo2-1b", "tinyllama-1.1b", "smollm2-1.7b"),
]
LARGE = [
    *("llama2-7b", "llama3.1-8b", "qwen2.5-7b", "mistral-7b"),
    *("llama3.2-3b", "qwen3-4b", "gemma2-9b"),
]
LOSSES = ("full", "liger_fused", "cut", "liger", "full_no_upcast")
POLICIES: tuple[Any, ...] = (
    {"mode": "selective", "selective_ac_option": "op"},
    {"mode": "selective", "selective_ac_option": "2"},
    {"every_n_layers": 3},
    {"mode": "full"},
)


def training(pick: Random) -> dict[str, Any]:
    """Sizes, precision, and at most one of a loss, Liger's kernels and smoothed labels."""
    found: dict[str, Any] = {
        "batch_size": pick.choice((1, 2, 3, 4)),
        "seq_len": pick.choice((512, 777, 1024, 1500, 2048, 3001, 4096)),
        "precision": pick.choice(("bf16_mixed", "bf16_mixed", "bf16_pure")),
        "optimizer_implementation": pick.choice(("fused", "foreach")),
        "gradient_accumulation_steps": pick.choice((1, 1, 2)),
    }
    kind = pick.choice(("loss", "loss", "liger", "smoothing", "none"))
    if kind == "loss":
        found["loss"] = pick.choice(LOSSES)
    elif kind == "liger":
        found["liger"] = True
    elif kind == "smoothing":
        found["label_smoothing"] = 0.1
    if pick.random() < 0.5:
        found["recompute"] = pick.choice(POLICIES)
    if pick.random() < 0.2:
        found["lora"] = {"r": 16, "target_modules": "all-linear"}
    return found


def single(pick: Random) -> dict[str, Any]:
    """One GPU."""
    return {
        "model": {"name": pick.choice(SMALL)},
        "training": training(pick),
        "engine": {"type": "pytorch_ddp"},
        "hardware": {"gpu": "h200", "num_gpus": 1},
    }


def fsdp(pick: Random) -> dict[str, Any]:
    """A rank of FSDP 1 or 2, with torchtitan's code now and then."""
    gpus = pick.choice((2, 8, 16, 64))
    engine: dict[str, Any] = {"type": "fsdp", "fsdp_version": pick.choice((1, 1, 2))}
    engine["sharding_strategy"] = pick.choice(("full_shard", "full_shard", "shard_grad_op"))
    if pick.random() < 0.3:
        engine["reduce_dtype"] = "fp32"
    model: dict[str, Any] = {"name": pick.choice((*SMALL, *LARGE))}
    values = training(pick)
    if engine["fsdp_version"] == 2 and pick.random() < 0.5:
        model = {"name": pick.choice(("llama2-7b", "llama3.1-8b")), "implementation": "torchtitan"}
        for key in ("loss", "liger", "label_smoothing", "lora"):
            values.pop(key, None)
    return {
        "model": model,
        "training": values,
        "engine": engine,
        "hardware": {"gpu": "h200", "num_gpus": gpus},
    }


def megatron(pick: Random) -> dict[str, Any]:
    """A rank of Megatron-Core in its local spec, with stages of unequal length or interleaved."""
    engine: dict[str, Any] = {
        "type": "megatron_lm",
        "transformer_implementation": "local",
        "gradient_accumulation_fusion": False,
        "masked_softmax_fusion": False,
        "distributed_optimizer": pick.random() < 0.5,
    }
    pp, vp, tp = pick.choice((2, 4)), 1, pick.choice((1, 2, 4))
    layers = 16
    kind = pick.choice(("even", "ends", "account", "interleaved"))
    if kind == "ends":
        engine["decoder_first_pipeline_num_layers"] = pick.choice((2, 3))
        engine["decoder_last_pipeline_num_layers"] = pick.choice((2, 3))
        layers = 2 * (pp - 2) * 2 + sum(
            engine[f"decoder_{end}_pipeline_num_layers"] for end in ("first", "last")
        )
    elif kind == "account":
        engine["account_for_embedding_in_pipeline_split"] = True
        engine["account_for_loss_in_pipeline_split"] = True
        layers = 4 * pp - 2
    elif kind == "interleaved":
        vp = 2
    config = {
        "num_layers": layers,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": pick.choice((32, 8)),
        "intermediate_size": 11008,
        "gated_mlp": True,
        "normalization": "rmsnorm",
        "position_embedding": "rope",
        "bias": False,
        "vocab_size": 32000,
        "max_seq_len": 4096,
        "tie_word_embeddings": False,
    }
    values: dict[str, Any] = {
        "batch_size": pick.choice((1, 2)),
        "seq_len": pick.choice((1024, 2048)),
        "gradient_accumulation_steps": pp * pick.choice((1, 2)),
        "precision": "bf16_mixed",
        "optimizer_implementation": "foreach",
        "loss": pick.choice(("full", "megatron_fused")),
    }
    if pick.random() < 0.5:
        values["recompute"] = pick.choice(
            (
                {"recompute_modules": ["core_attn"]},
                {
                    "recompute_granularity": "full",
                    "recompute_method": "uniform",
                    "recompute_num_layers": 1,
                },
                {
                    "recompute_granularity": "full",
                    "recompute_method": "block",
                    "recompute_num_layers": 2,
                },
            )
        )
    gpus = pp * tp * pick.choice((1, 2))
    return {
        "model": config,
        "training": values,
        "parallelism": {
            "tensor_parallel_size": tp,
            "pipeline_parallel_size": pp,
            "virtual_pipeline_size": vp,
            "sequence_parallel": tp > 1,
        },
        "engine": engine,
        "hardware": {"gpu": "h200", "num_gpus": gpus},
    }


def drawn() -> Iterator[dict[str, Any]]:
    """COUNT runs that are accepted, have a program, and fit."""
    pick, found = Random(SEED), 0
    while found < COUNT:
        kind = (single, fsdp, fsdp, megatron)[pick.randrange(4)]
        config = kind(pick)
        try:
            program(config)
            estimate = full_estimate(config, replay=False)
        except InputError:
            continue
        if max(int(ledger.peak()) for ledger in estimate.ledgers) > MOST:
            continue
        pp = config.get("parallelism", {}).get("pipeline_parallel_size", 1)
        tp = config.get("parallelism", {}).get("tensor_parallel_size", 1)
        world = config["hardware"]["num_gpus"]
        rank = pick.randrange(pp) * (world // pp) if kind is megatron else 0
        name = f"drawn-{found:02}-{kind.__name__}" + (f"-tp{tp}-pp{pp}" if pp > 1 else "")
        group = {"single": "single", "fsdp": "fsdp", "megatron": "megatron"}[kind.__name__]
        yield {"id": name, "group": group, "config": config, "rank": rank}
        found += 1


if __name__ == "__main__":
    for row in drawn():
        print(json.dumps(row))
