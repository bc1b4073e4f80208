"""The run files whose steps are timed, and tiny ones for the host's time.

Which half of the runs may be looked at is decided by a hash of the id, before anything is measured.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "tests" / "ground_truth"
FILES = ("runs", "unseen", "random", "options", "engines", "host", "kept", "families")
QUOTAS = {"single": 34, "ddp": 5, "fsdp": 24, "deepspeed": 26, "peft": 14, "megatron": 18}
LONGEST_STEP = 1.3  # seconds
MOST_BYTES = 120 * 10**9
LLAMA_1B = {
    "model_type": "llama",
    "num_hidden_layers": 16,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}
QWEN_05B = {
    "model_type": "qwen2",
    "num_hidden_layers": 24,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}

Case = dict[str, Any]


def digest(name: str) -> int:
    """A number that depends on a name alone."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def split(name: str) -> str:
    """Whether a run may be looked at (`seen`), or judges what was learned from those (`unseen`)."""
    return "seen" if digest(f"split {name}") % 2 == 0 else "unseen"


def chosen_runs() -> list[Case]:
    """Measured runs of every engine, in an order that does not depend on what they show."""
    left, found, names = dict(QUOTAS), [], set()
    for file in FILES:
        rows = [json.loads(line) for line in (FOLDER / f"{file}.jsonl").open()]
        for row in sorted(rows, key=lambda one: digest(one["id"])):
            group = row["group"]
            if left.get(group, 0) > 0 and suitable(row) and row["id"] not in names:
                left[group] -= 1
                names.add(row["id"])
                found.append(_case(row["id"], row["config"], group, row.get("rank", 0)))
    return found


def suitable(row: Case) -> bool:
    """Whether a measured run is short, small, and described by its run file alone."""
    measured, known = row["measured"], row.get("environment") or {}
    seconds = measured.get("step_seconds")
    return bool(
        seconds is not None
        and seconds <= LONGEST_STEP
        and measured.get("allocated_bytes", MOST_BYTES) < MOST_BYTES
        and not row.get("function")
        and "failed" not in row
        and not known.get("alloc_conf")
        and not known.get("cap_bytes")
        and "program" not in row["config"]
        and "inference" not in row["config"]
    )


def _case(name: str, config: Case, group: str, rank: int = 0) -> Case:
    return {"id": name, "split": split(name), "group": group, "rank": rank, "config": config}


def variations() -> Iterator[Case]:
    """Two models with other batches, lengths and choices, under every engine."""
    for title, model in (("llama1b", LLAMA_1B), ("qwen05b", QWEN_05B)):
        for engine in ENGINES:
            for batch, seq, recompute in ((1, 1024, "none"), (4, 2048, "none"), (4, 2048, "full")):
                name = f"vary-{title}-{engine}-b{batch}-s{seq}-{recompute}"
                yield _case(name, config(model, engine, batch, seq, recompute), groups(engine))


ENGINES: dict[str, tuple[int, Case, Case]] = {
    "pure": (1, {"type": "pytorch_ddp"}, {"precision": "bf16_pure"}),
    "fused": (
        1,
        {"type": "pytorch_ddp"},
        {"precision": "bf16_mixed", "optimizer_implementation": "fused"},
    ),
    "fsdp": (8, {"type": "fsdp", "sharding_strategy": "full_shard"}, {}),
    "zero1": (8, {"type": "deepspeed", "zero_stage": 1}, {}),
    "zero3": (8, {"type": "deepspeed", "zero_stage": 3}, {}),
    "lora": (
        1,
        {"type": "pytorch_ddp"},
        {
            "precision": "bf16_pure",
            "autocast": True,
            "lora": {"r": 16, "target_modules": ["q_proj", "v_proj"], "adapter_dtype": "fp32"},
        },
    ),
}
ALL_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LORA_ALL = {"r": 8, "target_modules": ALL_LINEAR, "adapter_dtype": "fp32"}


def groups(engine: str) -> str:
    """The group of an engine's runs."""
    kinds = {"lora": "peft", "fsdp": "fsdp", "zero1": "deepspeed", "zero3": "deepspeed"}
    return kinds.get(engine, "single")


def config(model: Case, engine: str, batch: int, seq: int, recompute: str) -> Case:
    """A run file."""
    ranks, section, training = ENGINES[engine]
    base = {
        "batch_size": batch,
        "seq_len": seq,
        "optimizer": "adamw",
        "precision": "bf16_mixed",
        "gradient_clipping": 1.0,
        "activation_checkpointing": recompute,
        "attention": "sdpa",
    }
    return {
        "model": {"config": dict(model)},
        "training": {**base, **deepcopy(training)},
        "parallelism": {"data_parallel_size": ranks},
        "engine": dict(section),
        "hardware": {"gpu": "h200", "num_gpus": ranks},
    }


def runs(part: str) -> list[Case]:
    """The runs of a part of the campaign: DeepSpeed's are in the first, which compiles its kernels.

    The groups alternate, so that a campaign that is cut short has some of each.
    """
    every = [*chosen_runs(), *variations()]
    ordered = sorted(every, key=lambda one: digest(one["id"]))
    first = [c for c in ordered if c["group"] == "deepspeed" or digest(c["id"]) % 16 < 5]
    names = {c["id"] for c in first}
    return first if part == "1" else [c for c in ordered if c["id"] not in names]


SIZE = {"vocab_size": 1024}
FAMILIES: dict[str, Case] = {
    name: {**SIZE, **fields, "model_type": name}
    for name, fields in {
        **{
            name: {
                "hidden_size": 256,
                "intermediate_size": 512,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": 64,
            }
            for name in ("llama", "qwen2", "qwen3", "gemma3_text", "mistral", "phi3")
        },
        "mixtral": {
            "hidden_size": 256,
            "intermediate_size": 512,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
        "gpt2": {"n_embd": 256, "n_head": 4, "n_positions": 1024},
        "gpt_neox": {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4},
        "opt": {
            "hidden_size": 256,
            "ffn_dim": 512,
            "num_attention_heads": 4,
            "word_embed_proj_dim": 256,
        },
    }.items()
}
LAYERS = {"gpt2": "n_layer"}
DEPTHS = (4, 12)
# Variant -> engine section, GPUs, training keys
VARIANTS: dict[str, tuple[Case, int, Case]] = {
    "pure": ({"type": "pytorch_ddp"}, 1, {"precision": "bf16_pure"}),
    "mixed": ({"type": "pytorch_ddp"}, 1, {"precision": "bf16_mixed"}),
    "fp32": ({"type": "pytorch_ddp"}, 1, {"precision": "fp32"}),
    "ckpt": (
        {"type": "pytorch_ddp"},
        1,
        {"precision": "bf16_pure", "activation_checkpointing": "full"},
    ),
    "fused": (
        {"type": "pytorch_ddp"},
        1,
        {"precision": "bf16_pure", "optimizer_implementation": "fused"},
    ),
    "forloop": (
        {"type": "pytorch_ddp"},
        1,
        {"precision": "bf16_pure", "optimizer_implementation": "forloop"},
    ),
    "accum2": (
        {"type": "pytorch_ddp"},
        1,
        {"precision": "bf16_pure", "gradient_accumulation_steps": 2},
    ),
    "eager": ({"type": "pytorch_ddp"}, 1, {"precision": "bf16_pure", "attention": "eager"}),
    "lora_qv": ({"type": "pytorch_ddp"}, 1, ENGINES["lora"][2]),
    "lora_all": (
        {"type": "pytorch_ddp"},
        1,
        {"precision": "bf16_pure", "autocast": True, "lora": LORA_ALL},
    ),
    "qlora_all": (
        {"type": "pytorch_ddp"},
        1,
        {"precision": "bf16_pure", "autocast": True, "lora": LORA_ALL, "quantization": "nf4"},
    ),
    "lora_int8": (
        {"type": "pytorch_ddp"},
        1,
        {"precision": "bf16_pure", "autocast": True, "lora": LORA_ALL, "quantization": "int8"},
    ),
    "fsdp": ({"type": "fsdp", "sharding_strategy": "full_shard"}, 8, {}),
    "fsdp_ckpt": (
        {"type": "fsdp", "sharding_strategy": "full_shard"},
        8,
        {"activation_checkpointing": "full"},
    ),
    "fsdp_keep": ({"type": "fsdp", "sharding_strategy": "shard_grad_op"}, 8, {}),
    "fsdp_accum2": (
        {"type": "fsdp", "sharding_strategy": "full_shard"},
        8,
        {"gradient_accumulation_steps": 2},
    ),
    "zero0": ({"type": "deepspeed", "zero_stage": 0}, 8, {}),
    "zero1": ({"type": "deepspeed", "zero_stage": 1}, 8, {}),
    "zero2": ({"type": "deepspeed", "zero_stage": 2}, 8, {}),
    "zero3": (  # with torch's optimizer: nothing to compile
        {"type": "deepspeed", "zero_stage": 3},
        8,
        {"optimizer_implementation": "foreach"},
    ),
    "zero3_ckpt": (
        {"type": "deepspeed", "zero_stage": 3},
        8,
        {"optimizer_implementation": "foreach", "activation_checkpointing": "full"},
    ),
    "zero2_cpu": ({"type": "deepspeed", "zero_stage": 2, "offload_optimizer": "cpu"}, 8, {}),
    "ddp": ({"type": "pytorch_ddp"}, 2, {}),
}
PLAIN = ("pure", "mixed", "ckpt")


def tiny(family: str, variant: str, depth: int) -> Case:
    """The run file of a tiny model."""
    section, ranks, training = VARIANTS[variant]
    model = {**FAMILIES[family], LAYERS.get(family, "num_hidden_layers"): depth}
    base = {"batch_size": 1, "seq_len": 64, "optimizer": "adamw", "precision": "bf16_mixed"}
    file = {
        "model": {"config": model},
        "training": {**base, **deepcopy(training)},
        "parallelism": {"data_parallel_size": ranks},
        "engine": dict(section),
        "hardware": {"gpu": "h200", "num_gpus": ranks},
    }
    return {"id": f"host-{family}-{variant}-{depth}", "config": file, "layers": depth}


def bundle(families: Sequence[str], variants: Sequence[str]) -> list[Case]:
    """Tiny models that one process measures one after another."""
    return [tiny(f, v, depth) for f in families for v in variants for depth in DEPTHS]


def megatron_tiny(tp: int, gated: bool, depth: int, recompute: str = "none") -> Case:
    """The run file of a tiny model under Megatron-Core."""
    style = "llama" if gated else "gpt"
    model = {
        "num_layers": depth,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 512,
        "gated_mlp": gated,
        "normalization": "rmsnorm" if gated else "layernorm",
        "position_embedding": "rope" if gated else "learned",
        "bias": not gated,
        "dropout": 0.0 if gated else 0.1,
        "vocab_size": 1024,
        "max_seq_len": 64,
        "tie_word_embeddings": False,
    }
    fields = {"distributed_optimizer": False, "transformer_implementation": "local"}
    fusions = {"masked_softmax_fusion": False, "gradient_accumulation_fusion": False}
    file = {
        "model": model,
        "training": {
            "batch_size": 1,
            "seq_len": 64,
            "optimizer": "adamw",
            "precision": "bf16_mixed",
            "optimizer_implementation": "foreach",
            "activation_checkpointing": recompute,
        },
        "parallelism": {"tensor_parallel_size": tp, "sequence_parallel": tp > 1},
        "engine": {"type": "megatron_lm", **fields, **fusions},
        "hardware": {"gpu": "h200", "num_gpus": tp},
    }
    name = f"host-megatron-{style}-tp{tp}-{recompute}-{depth}"
    return {"id": name, "config": file, "layers": depth}


def host_bundles(part: str) -> list[list[Case]]:
    """Tiny models for the host's time: those of a list share a process."""
    names = list(FAMILIES)
    if part == "1":
        zeros = ("zero0", "zero1", "zero2", "zero3", "zero3_ckpt", "zero2_cpu")
        return [bundle((f,), (v,)) for v in zeros for f in ("llama", "gpt2")]
    singles = ("fp32", "fused", "forloop", "accum2", "eager")
    adapters = ("lora_qv", "lora_all", "qlora_all", "lora_int8")
    sharded = ("fsdp", "fsdp_ckpt", "fsdp_keep", "fsdp_accum2")
    return [
        *[bundle((f,), PLAIN) for f in names],
        bundle(("llama",), singles),
        bundle(("llama",), adapters),
        bundle(("llama", "gpt2"), sharded),
        bundle(("llama",), ("ddp",)),
        *[
            [megatron_tiny(tp, gated, depth)]
            for tp in (1, 4)
            for gated in (True, False)
            for depth in DEPTHS
        ],
        *[[megatron_tiny(1, True, depth, "full")] for depth in DEPTHS],
    ]
