"""Draws the runs that are to die: which phase, which tool, which model, which settings.

    python tests/advice/diagnosis/draw_died.py > tests/advice/diagnosis/died_draw.jsonl

A case has the arguments of its program in `died_programs` (`args`), the same run as a run file
(`config`), and `share`: the cap lies between the peak of all phases before the target (0) and the
peak of the target phase (1), as a first pass without a cap measured them. Nothing is measured here.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

Row = dict[str, Any]

# The phase of each case, and the tools it is drawn from.
TABLE: dict[str, list[str]] = {
    "loading": ["loop", "trainer", "lightning", "peft"],
    "start-up": ["fsdp2", "ddp", "peft-kbit", "trl-dpo"],
    "first forward": ["loop", "trainer", "trl-sft", "lightning", "peft"],
    "first backward": ["loop", "trainer", "accelerate", "fsdp2", "trl-sft"],
    "first optimizer step": ["loop", "loop", "trainer", "accelerate", "lightning"],
    "second step": ["trainer", "loop", "lightning", "accelerate"],
    "evaluation": ["trainer", "lightning", "accelerate"],
    "save": ["fsdp2", "loop", "peft-merge"],
    "longer batch": ["trainer", "peft", "accelerate"],
    "second process": ["loop", "accelerate"],
    "fragmentation": ["loop", "trainer"],
}
FAMILIES = ["llama"] * 2 + ["qwen2"] * 2 + ["qwen3"] * 2 + ["gemma3_text", "mistral", "mixtral"]
LORA = {"r": 16, "lora_alpha": 32, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}


def model(rng: random.Random, family: str) -> Row:
    """A small model of a family, with the shape of its larger ones."""
    heads = rng.choice([12, 16, 24, 32])
    head_dim = {"qwen3": 128, "gemma3_text": 256}.get(family, 64)
    hidden = heads * 64
    if family == "gemma3_text":
        heads, hidden = 4, rng.choice([640, 896, 1152])
    vocab = {"qwen2": 151936, "qwen3": 151936, "gemma3_text": 262144, "mistral": 32768}
    size = vocab.get(family) or (32000 if family == "mixtral" else rng.choice([32000, 128256]))
    fields: Row = {
        "model_type": family,
        "hidden_size": hidden,
        "num_hidden_layers": rng.choice([6, 8] if family == "mixtral" else [12, 16, 20, 28]),
        "num_attention_heads": heads,
        "num_key_value_heads": 1 if family == "gemma3_text" else heads // 4,
        "head_dim": head_dim,
        "intermediate_size": 128 * round(hidden * rng.choice([2.5, 3, 4]) / 128),
        "vocab_size": size,
        "max_position_embeddings": 16384,
        "tie_word_embeddings": size > 100_000,
    }
    if family == "mixtral":
        fields |= {"num_local_experts": rng.choice([4, 8]), "num_experts_per_tok": 2}
    return fields


def shape(rng: random.Random, phase: str) -> Row:
    """Batch, length, and what keeps the phases before the target small."""
    if phase in ("first forward", "second step", "second process"):
        batch, length = rng.choice([(2, 2048), (4, 1024), (8, 1024), (4, 2048), (2, 4096)])
        return {"batch": batch, "lengths": [length] * 4, "ckpt": False}
    if phase == "first backward":
        batch, length = rng.choice([(1, 512), (2, 2048), (4, 1024), (3, 3072)])
        return {"batch": batch, "lengths": [length] * 3, "ckpt": rng.random() < 0.6}
    if phase == "longer batch":
        short = rng.choice([256, 384, 512])
        lengths = [short] * rng.choice([4, 6, 9]) + [short * rng.choice([8, 12])] + [short] * 2
        return {"batch": rng.choice([2, 4]), "lengths": lengths, "ckpt": rng.random() < 0.3}
    if phase == "fragmentation":
        lengths = [64 * rng.randint(4, 40) for _ in range(24)]
        return {"batch": 4, "lengths": lengths, "ckpt": False}
    if phase == "loading":
        return {"batch": 1, "lengths": [512] * 3, "ckpt": False}
    return {"batch": 1, "lengths": [rng.choice([256, 512])] * 3, "ckpt": rng.random() < 0.5}


def optimizer(rng: random.Random, phase: str) -> str:
    """States are what a first step lacks; a foreach step would hide a second one."""
    if phase in ("second step", "evaluation", "save", "longer batch"):
        return rng.choice(["adamw_fused", "adamw_fused", "sgd"])
    if phase == "first optimizer step":
        return rng.choice(["adamw", "adamw", "adamw_fused", "sgd"])
    return rng.choice(["adamw", "adamw_fused", "sgd", "adafactor"])


def evaluation(rng: random.Random, phase: str) -> Row | None:
    """An evaluation that needs more than the steps."""
    if phase != "evaluation":
        return None
    batch = rng.choice([8, 16])
    return {"batch_size": batch, "seq_len": rng.choice([1024, 2048]), "batches": rng.choice([2, 6])}


def training(case: Row, precision: str) -> Row:
    """The keys of a run file for a loop of one's own."""
    keys: Row = {
        "batch_size": case["batch"],
        "seq_len": max(case["lengths"]),
        "precision": precision,
        "optimizer": case["optimizer"].split("_")[0],
        "activation_checkpointing": "full" if case["ckpt"] else "none",
        "attention": case["attention"],
        "use_cache": not case["ckpt"],
    }
    if case["optimizer"].startswith("adamw"):
        names = {"adamw_fused": "fused", "adamw_foreach": "foreach"}
        keys["optimizer_implementation"] = names.get(case["optimizer"], "forloop")  # fused=False
    if case["eval"]:
        keys["evaluation"] = case["eval"]
    return keys


def common(case: Row) -> Row:
    """What every program takes."""
    return {
        "attention": case["attention"],
        "batch_size": case["batch"],
        "lengths": case["lengths"],
        "gradient_checkpointing": case["ckpt"],
        "optimizer": case["optimizer"],
        "eval": case["eval"],
        "lora": None,
        "kbit": False,
        "save": None,
    }


def loop(case: Row, rng: random.Random) -> Row:
    """A plain loop; with adapters where the tool says peft."""
    precision = rng.choice(["bf16_mixed", "bf16_mixed", "bf16_pure", "fp32"])
    if case["phase"] == "save":
        precision = "bf16_pure"
    dtype = "bfloat16" if precision == "bf16_pure" else "float32"
    args = common(case) | {"dtype": dtype, "autocast": precision == "bf16_mixed"}
    keys = training(case, precision)
    if case["eval"] and rng.random() < 0.5:
        case["eval"]["keep_logits"] = True
    if case["tool"].startswith("peft"):
        lora = {"r": LORA["r"], "target_modules": LORA["target_modules"]}
        args |= {"lora": LORA, "kbit": case["tool"] == "peft-kbit", "dtype": "bfloat16"}
        args["autocast"] = True
        keys |= {"precision": "bf16_pure", "autocast": True, "lora": lora}
        keys["upcast_unquantized"] = args["kbit"]
        if args["kbit"]:
            keys["precision"] = "bf16_mixed"
            del keys["autocast"], keys["upcast_unquantized"]
    if case["phase"] == "save":
        args["save"] = "merge" if case["tool"] == "peft-merge" else "fp32"
    return {"program": "loop.py", "args": args, "config": {"training": keys}}


def ddp(case: Row, rng: random.Random) -> Row:
    """One rank of DistributedDataParallel with NCCL."""
    args = common(case) | {"dtype": "float32", "autocast": True, "backend": "nccl"}
    config = {"training": training(case, "bf16_mixed"), "engine": {"type": "pytorch_ddp"}}
    return {"program": "train_ddp.py", "args": args, "config": config, "ranks": 2}


def fsdp2(case: Row, rng: random.Random) -> Row:
    """One rank of several, whose other ranks are not there: torch's fake process group."""
    world = rng.choice([2, 4, 8])
    case["optimizer"] = "adamw_fused" if case["optimizer"] == "adamw_fused" else "adamw"
    load = "state_dict" if case["phase"] == "start-up" else rng.choice(["state_dict", "whole"])
    if case["phase"] == "first backward":  # else the whole model in fp32 is the peak
        case["lengths"], case["batch"] = [4096] * 2, 2
    if case["phase"] == "save":  # the same of its start-up
        world = 2
    args = common(case) | {"world": world, "load": load}
    args["save"] = case["phase"] == "save"
    keys = training(case, "bf16_mixed") | {"use_cache": False, "gradient_clipping": 0}
    if case["phase"] == "save":
        keys["saving"] = "full_state_dict"
    engine = {"type": "fsdp", "sharding_strategy": "full_shard", "reduce_dtype": "fp32"}
    config = {"training": keys, "engine": engine}
    return {"program": "train_fsdp.py", "args": args, "config": config, "ranks": world}


def accelerate(case: Row, rng: random.Random) -> Row:
    """Accelerate's loop, in fp32 or mixed."""
    mixed = rng.choice(["bf16", "bf16", "no"])
    args = common(case) | {"dtype": "float32", "mixed_precision": mixed}
    if case["eval"] and rng.random() < 0.7:
        case["eval"]["keep_logits"] = True
    keys = training(case, "bf16_mixed" if mixed == "bf16" else "fp32") | {"gradient_clipping": 0}
    return {"program": "train_accelerate.py", "args": args, "config": {"training": keys}}


def _trainer_arguments(case: Row, rng: random.Random) -> Row:
    names = {
        "adamw": "adamw_torch",
        "adamw_fused": "adamw_torch_fused",
        "adamw_foreach": "adamw_torch",
        "sgd": "adafactor",  # Trainer's sgd has no momentum
        "adafactor": "adafactor",
    }
    arguments: Row = {
        "per_device_train_batch_size": case["batch"],
        "optim": names[case["optimizer"]],
        "bf16": rng.random() < 0.8,
        "gradient_checkpointing": case["ckpt"],
    }
    if case["eval"]:
        arguments |= {"per_device_eval_batch_size": case["eval"]["batch_size"]}
        arguments |= {"eval_strategy": "epoch"}
    return arguments


# What says how much a program prints and how long it runs, which a run file need not know.
QUIET: Row = {"report_to": [], "save_strategy": "no", "logging_steps": 1, "num_train_epochs": 1}


def trainer(case: Row, rng: random.Random) -> Row:
    """transformers.Trainer on rows that come in their order."""
    arguments = _trainer_arguments(case, rng)
    dtype = rng.choice(["float32", "bfloat16"]) if case["phase"] == "loading" else "float32"
    metrics = bool(case["eval"]) and rng.random() < 0.6
    lengths = [n for n in case["lengths"] for _ in range(case["batch"])]
    held = case["eval"]
    args = {
        "attention": case["attention"],
        "dtype": dtype,
        "device_map": "cuda" if case["phase"] == "loading" else None,
        "lora": None,
        "kbit": False,
        "lengths": lengths,
        "eval_lengths": [held["seq_len"]] * held["batch_size"] * held["batches"] if held else None,
        "compute_metrics": metrics,
        "training_args": arguments | QUIET,
    }
    load = {"dtype": dtype, "attn_implementation": case["attention"]}
    config: Row = {
        "program": {
            "tool": "transformers.Trainer",
            "args": arguments,
            "load": load,
            "data": {"seq_len": max(case["lengths"])},
        }
    }
    return {"program": "finetune_trainer.py", "args": args, "config": config}


def trl(case: Row, rng: random.Random) -> Row:
    """SFT or DPO."""
    kind = case["tool"].removeprefix("trl-")
    arguments = _trainer_arguments(case, rng)
    longest = max(case["lengths"])
    arguments["max_length"] = longest + (64 if kind == "dpo" else 0)
    lora = LORA if kind == "sft" and rng.random() < 0.4 else None
    args = {
        "attention": case["attention"],
        "dtype": "float32",
        "kind": kind,
        "lora": lora,
        "lengths": [n for n in case["lengths"] for _ in range(case["batch"])],
        "eval_lengths": None,
        "training_args": arguments | QUIET,
    }
    data = {"seq_len": arguments["max_length"]} | ({"prompt": 64} if kind == "dpo" else {})
    section: Row = {
        "tool": f"trl.{kind.upper()}Trainer",
        "args": arguments,
        "load": {"dtype": "float32", "attn_implementation": case["attention"]},
        "data": data,
    }
    if lora:
        section["peft"] = lora
    return {"program": "trl_finetune.py", "args": args, "config": {"program": section}}


def lightning(case: Row, rng: random.Random) -> Row:
    """A LightningModule around the model; AdamW, as its section of a run file knows."""
    precision = rng.choice(["bf16-mixed", "bf16-true", "32-true"])
    foreach = case["optimizer"] == "adamw_foreach"
    fused = case["optimizer"].endswith("_fused") or case["phase"] == "second step"
    clip = rng.choice([None, 1.0])
    args = common(case) | {
        "optimizer": "adamw",
        "dtype": "float32",
        "precision": precision,
        "fused": None if foreach else fused,
        "gradient_clip_val": clip,
        "accelerator": "gpu",
    }
    arguments: Row = {
        "precision": precision,
        "batch_size": case["batch"],
        "gradient_checkpointing": case["ckpt"],
        "gradient_clip_val": clip,
        "fused": args["fused"],
    }
    section = {
        "tool": "lightning",
        "args": {k: v for k, v in arguments.items() if v is not None},
        "load": {"dtype": "float32", "attn_implementation": case["attention"]},
        "data": {"seq_len": max(case["lengths"])},
    }
    return {"program": "lit_train.py", "args": args, "config": {"program": section}}


TOOLS: dict[str, Callable[[Row, random.Random], Row]] = {
    "loop": loop,
    "peft": loop,
    "peft-kbit": loop,
    "peft-merge": loop,
    "ddp": ddp,
    "fsdp2": fsdp2,
    "accelerate": accelerate,
    "trainer": trainer,
    "trl-sft": trl,
    "trl-dpo": trl,
    "lightning": lightning,
}


def drawn(
    rng: random.Random,
    name: str,
    phase: str,
    tool: str,
    models: dict[str, Row],
    given: Row | None = None,
    tools: dict[str, Callable[[Row, random.Random], Row]] = TOOLS,
) -> Row:
    """A case of a phase and a tool, with one of the models; `given` is not drawn."""
    model_name = rng.choice(list(models))
    case: Row = {"phase": phase, "tool": tool} | shape(rng, phase)
    case["optimizer"] = optimizer(rng, phase)
    case["attention"] = rng.choice(["sdpa", "sdpa", "eager"])
    if max(case["lengths"]) > 3072:
        case["attention"] = "sdpa"
    case["eval"] = evaluation(rng, phase)
    case |= given or {}
    made = tools[tool](case, rng)
    config = {"model": {"config": models[model_name]}, **made["config"]}
    config["hardware"] = {"gpu": "h200", "num_gpus": made.pop("ranks", 1)}
    return {
        "id": name,
        "phase": phase,
        "tool": tool,
        "model": model_name,
        "program": made["program"],
        "args": made["args"],
        "share": round(rng.uniform(0.15, 0.9), 2),
        "config": config,
    }


START = random.Random(20261119)
MODELS = {f"{family}-{i}": model(START, family) for i, family in enumerate(FAMILIES)}
SMALL_VOCABULARY = [name for name, m in MODELS.items() if not m["tie_word_embeddings"]]
# torch's fully_shard with a tied embedding needs care that these programs do not take
FOR_FSDP = [name for name in SMALL_VOCABULARY if "mixtral" not in name]

# A second draw, after the first one had run: what had died too rarely in its phase, in shapes in
# which that phase needs more than those before it.
LONG: Row = {"ckpt": False, "batch": 2, "lengths": [3072] * 3}
SHORT: Row = {"ckpt": True, "batch": 1, "lengths": [256] * 3}
AGAIN: list[tuple[str, str, list[str], Row]] = [
    ("first backward", "loop", ["qwen2-3", "qwen2-2", "llama-1"], LONG),
    ("first backward", "trainer", ["llama-0", "qwen3-5"], LONG),
    ("first backward", "lightning", ["mistral-7", "llama-0"], SHORT | {"lengths": [1024] * 3}),
    ("first backward", "trl-sft", ["mistral-7", "llama-0"], SHORT),
    ("first backward", "peft", ["qwen2-2", "llama-0"], LONG),
    ("save", "loop", ["mistral-7", "mixtral-8"], SHORT),
    ("save", "fsdp2", FOR_FSDP, {}),
    ("evaluation", "loop", ["qwen2-2", "mistral-7"], {"ckpt": True}),
    ("longer batch", "trl-sft", ["mistral-7", "llama-0"], {}),
    ("fragmentation", "loop", ["mistral-7", "qwen2-2"], {"batch": 2, "attention": "sdpa"}),
]


def cases() -> list[Row]:
    """All of them."""
    rows, again = [], random.Random(20261120)
    for phase, tools in TABLE.items():
        for number, tool in enumerate(tools, 1):
            models = {n: MODELS[n] for n in FOR_FSDP} if tool == "fsdp2" else MODELS
            rows.append(drawn(START, name_of(phase, number, tool), phase, tool, models))
    for number, (phase, tool, names, given) in enumerate(AGAIN, 1):
        name, models = name_of(phase, 10 + number, tool), {n: MODELS[n] for n in names}
        rows.append(drawn(again, name, phase, tool, models, given))
    return rows


def name_of(phase: str, number: int, tool: str) -> str:
    """A case's name."""
    return f"{phase.replace(' ', '-')}-{number}-{tool}"


if __name__ == "__main__":
    for row in cases():
        print(json.dumps(row))
