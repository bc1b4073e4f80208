"""Draws the second set of runs that are to die: other models, settings and programs.

    python -m tests.advice.diagnosis.draw_died_2 > tests/advice/diagnosis/died_2_draw.jsonl

The rows are those of `draw_died.py`, whose tools it shares. Nothing is measured here.
"""

from __future__ import annotations

import json
import random

from tests.advice.diagnosis import draw_died as first
from tests.advice.diagnosis.draw_died import QUIET, Row

TABLE: dict[str, list[str]] = {
    "loading": ["pretrain", "trainer", "generate", "accelerate"],
    "start-up": ["fsdp1", "resume", "ema", "ddp", "trl-grpo"],
    "first forward": ["pretrain", "trainer", "trl-dpo", "fsdp1", "lightning"],
    "first backward": ["pretrain", "trainer", "peft", "fsdp2", "lightning", "accelerate"],
    "first optimizer step": ["pretrain", "pretrain", "trainer", "ddp", "fsdp1", "lightning"],
    "second step": ["pretrain", "trainer", "accelerate", "lightning", "loop"],
    "evaluation": ["pretrain", "trainer", "lightning", "accelerate", "loop"],
    "save": ["fsdp1", "fsdp2", "pretrain", "peft-merge"],
    "longer batch": ["pretrain", "lightning", "trl-dpo", "loop"],
    "second process": ["pretrain", "trainer", "generate", "lightning"],
    "fragmentation": ["pretrain", "lightning", "trainer"],
    "generation": ["generate", "generate", "generate", "generate", "trl-grpo"],
}
# A family's vocabulary, and whether the output layer is the embedding, as its models have it.
FAMILIES: dict[str, tuple[int, bool]] = {
    "gpt2": (50257, True),
    "opt": (50272, True),
    "gpt_neox": (50432, False),
    "starcoder2": (49152, True),
    "phi3": (32064, False),
    "gemma2": (256000, True),
    "olmo2": (100352, False),
    "granite": (49152, False),
    "stablelm": (100352, False),
    "smollm3": (128256, True),
    "qwen3_moe": (151936, False),
    "llama": (128256, True),
}
FOR_FSDP = ("phi3", "olmo2", "granite", "stablelm")  # layers in model.layers, no tied embedding
FOR_TRL = ("phi3", "olmo2", "llama")


def model(rng: random.Random, family: str) -> Row:
    """A small model of a family."""
    vocab, tied = FAMILIES[family]
    heads, layers = rng.choice([8, 12, 14, 18]), rng.choice([10, 14, 18, 24])
    fields: Row = {"model_type": family, "vocab_size": vocab}
    if family == "gpt2":
        return fields | {
            "n_embd": 64 * heads,
            "n_layer": layers,
            "n_head": heads,
            "n_positions": 8192,
        }
    fields |= {
        "hidden_size": 64 * heads,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": tied,
    }
    inner = 256 * round(heads * rng.choice([2.5, 3.5, 4]) / 4)
    if family == "opt":
        return fields | {"ffn_dim": inner, "word_embed_proj_dim": 64 * heads}
    fields["intermediate_size"] = inner
    if family != "gpt_neox":
        fields["num_key_value_heads"] = heads if family == "olmo2" else 2
    if family in ("gemma2", "qwen3_moe"):
        fields["head_dim"] = 128
    if family == "qwen3_moe":
        fields |= {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": inner // 4}
    return fields


def settings(rng: random.Random, phase: str) -> Row:
    """What differs from the first draw: lengths, batches, optimizers."""
    odd = [640, 896, 1152, 1280, 1536]
    given: Row = {"optimizer": first.optimizer(rng, phase)}
    if phase in ("first optimizer step", "loading", "start-up"):
        given["optimizer"] = rng.choice(["adamw_foreach", "adamw_foreach", "adamw_fused", "sgd"])
    if phase in ("first forward", "second step", "second process"):
        given |= {"batch": rng.choice([3, 5, 6]), "lengths": [rng.choice(odd)] * 4, "ckpt": False}
    elif phase == "first backward":
        long = rng.random() < 0.5
        given |= {"batch": 3 if long else 1, "lengths": [rng.choice(odd) if long else 192] * 3}
        given["ckpt"] = not long
    elif phase == "longer batch":
        short = rng.choice([96, 160, 256])
        given["lengths"] = [short] * rng.choice([3, 5, 7]) + [short * 9] + [short] * 2
        given |= {"batch": rng.choice([2, 3]), "ckpt": rng.random() < 0.3}
    elif phase == "fragmentation":
        given["lengths"] = [96 * rng.randint(2, 20) for _ in range(20)]
        given |= {"batch": 3, "attention": "sdpa"}
    elif phase == "evaluation":
        shape = {"batch_size": rng.choice([5, 7]), "seq_len": rng.choice(odd)}
        given |= {"lengths": [224] * 3, "eval": shape | {"batches": rng.choice([3, 5])}}
    else:
        given |= {"lengths": [rng.choice([160, 288])] * 3}
    return given


def pretrain(case: Row, rng: random.Random) -> Row:
    """A script in the manner of small pretraining repositories, with a loss of its own."""
    precision = rng.choice(["bf16_mixed", "fp16_mixed", "bf16_pure", "fp32"])
    if case["phase"] == "save":
        precision = "bf16_pure"
    if case["eval"] and rng.random() < 0.5:
        case["eval"]["keep_logits"] = True
    extra = {"resume": case["tool"] == "resume", "ema": case["tool"] == "ema"}
    args = first.common(case) | extra | {"precision": precision}
    args["save"] = case["phase"] == "save"
    training = first.training(case, precision)
    return {"program": "pretrain.py", "args": args, "config": {"training": training}}


def ddp(case: Row, rng: random.Random) -> Row:
    """The first draw's, whose program knows only torch's AdamW."""
    case["optimizer"] = "adamw_fused" if case["optimizer"] == "adamw_fused" else "adamw"
    return first.ddp(case, rng)


def fsdp1(case: Row, rng: random.Random) -> Row:
    """One rank of FullyShardedDataParallel, whose other ranks are not there."""
    world = 2 if case["phase"] == "save" else rng.choice([2, 4])
    case["optimizer"] = "adamw_fused" if case["optimizer"] == "adamw_fused" else "adamw_foreach"
    if case["phase"] == "first forward":
        case["batch"], case["lengths"] = 8, [1536] * 2
    args = first.common(case) | {"world": world, "save": case["phase"] == "save"}
    keys = first.training(case, "bf16_mixed") | {"use_cache": False, "gradient_clipping": 0}
    if args["save"]:
        keys["saving"] = "full_state_dict"
    engine = {"type": "fsdp", "fsdp_version": 1, "sharding_strategy": "full_shard"}
    engine["reduce_dtype"] = "fp32"
    config = {"training": keys, "engine": engine}
    return {"program": "train_fsdp1.py", "args": args, "config": config, "ranks": world}


def generate(case: Row, rng: random.Random) -> Row:
    """Answers to a batch of prompts, with a cache that grows."""
    kind = rng.choice(["generate", "generate", "beams", "by hand"])
    new = 24 if case["phase"] in ("loading", "second process") else rng.choice([160, 240])
    if case["phase"] != "loading":
        case["batch"], case["lengths"] = rng.choice([32, 48, 96]), [rng.choice([256, 512])]
    if "new" in case:
        kind, new, case["lengths"] = case["kind"], case["new"], [rng.choice([16, 24, 40])]
        case["batch"] = rng.choice([192, 256, 320])
    beams = 4 if kind == "beams" else 1
    case["batch"] //= beams if case["batch"] > beams else 1
    args = first.common(case) | {"kind": kind, "beams": beams, "new_tokens": new}
    args["dtype"] = rng.choice(["bfloat16", "float16"])
    section = {
        "engine": "transformers",
        "batch_size": case["batch"] * beams,
        "prompt_len": case["lengths"][0],
        "new_tokens": new,
        "max_seq_len": case["lengths"][0] + new,
        "dtype": {"bfloat16": "bf16", "float16": "fp16"}[args["dtype"]],
        "attention": case["attention"],
    }
    return {"program": "generate.py", "args": args, "config": {"inference": section}}


def grpo(case: Row, rng: random.Random) -> Row:
    """GRPO; with a reference model where start-up is to be too large."""
    made = first.trl(case, rng)
    generation = case["phase"] == "generation"
    arguments: Row = {
        "per_device_train_batch_size": 32 if generation else 4,
        "num_generations": 8 if generation else 4,
        "max_completion_length": 192 if generation else 16,
        "beta": 0.0 if generation else 0.04,
        "bf16": True,
        "optim": "adamw_torch_fused",
        "gradient_checkpointing": True,
    }
    prompts = [128] * 8
    made["args"] |= {"training_args": arguments | QUIET | {"max_steps": 2}, "lora": None}
    made["args"] |= {"lengths": prompts}
    program = made["config"]["program"]
    program |= {"args": arguments, "data": {"seq_len": 128 + arguments["max_completion_length"]}}
    program["data"]["prompt"] = 128
    program.pop("peft", None)
    return made


TOOLS = first.TOOLS | {
    "ddp": ddp,
    "pretrain": pretrain,
    "resume": pretrain,
    "ema": pretrain,
    "fsdp1": fsdp1,
    "generate": generate,
    "trl-grpo": grpo,
}
START = random.Random(20261121)
SHORT: Row = {"ckpt": True, "batch": 1, "lengths": [32] * 2}
# After the first run: a save needs more than a step where the batch is short.
AGAIN: list[tuple[str, str, list[str], Row]] = [
    ("save", "fsdp1", ["phi3", "granite"], SHORT),
    ("save", "fsdp2", ["phi3", "granite"], SHORT),
    ("save", "pretrain", ["granite", "opt", "phi3"], SHORT),
    ("loading", "lightning", ["opt", "stablelm"], {}),
]
# After the second: where the prompts are long, they need more than the cache that grows.
GROW: list[tuple[str, str, list[str], Row]] = [
    ("generation", "generate", ["gpt2", "olmo2", "gpt_neox"], {"kind": kind, "new": 320})
    for kind in ("generate", "by hand", "beams")
]
MODELS = {family: model(START, family) for family in FAMILIES}


def cases() -> list[Row]:
    """All of them."""
    rows = []
    for phase, tools in TABLE.items():
        for number, tool in enumerate(tools, 1):
            names = FOR_FSDP if tool.startswith("fsdp") else list(MODELS)
            names = FOR_TRL if tool.startswith("trl") else names
            name = "2-" + first.name_of(phase, number, tool)
            models = {n: MODELS[n] for n in names}
            row = first.drawn(START, name, phase, tool, models, settings(START, phase), TOOLS)
            if phase == "generation":  # the end of it, not the prompts
                row["share"] = round(START.uniform(0.7, 0.97), 2)
            rows.append(row)
    again = random.Random(20261122)
    for number, (phase, tool, names, given) in enumerate(AGAIN + GROW, 11):
        name, models = "2-" + first.name_of(phase, number, tool), {n: MODELS[n] for n in names}
        given = settings(again, phase) | given
        rows.append(first.drawn(again, name, phase, tool, models, given, TOOLS))
    return rows


if __name__ == "__main__":
    for one in cases():
        print(json.dumps(one))
