"""Draws programs at random, to be predicted once and then measured: every tool, with the options
that its users change.

python -m tests.tools.draw > tests/tools/drawn.jsonl (without trainer-11, which is refused)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

SEED = 20261118
SMALL = (
    *("llama3.2-1b", "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen3-0.6b", "qwen3-1.7b", "gemma2-2b"),
    *("gemma3-1b", "tinyllama-1.1b", "smollm2-1.7b", "gpt2-medium"),
    *("pythia-410m", "olmo-2-1b", "phi-1.5", "granite-3.1-2b"),
)
PLAIN = ("llama3.2-1b", "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen3-0.6b", "smollm2-135m", "gemma3-1b")
LARGE = ("llama3.1-8b", "mistral-7b", "qwen2.5-7b", "llama2-7b")
OPTIMIZERS = (
    *("adamw_torch_fused", "adamw_torch_fused", "adamw_torch", "adamw_bnb_8bit", "adafactor"),
    *("paged_adamw_8bit", "paged_adamw_32bit", "sgd", "lion_8bit", "rmsprop"),
)
NF4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": "bfloat16"}
Case = dict[str, Any]


def sizes(pick: Random) -> Case:
    """Batch and accumulation."""
    return {
        "per_device_train_batch_size": pick.choice((1, 2, 2, 4)),
        "gradient_accumulation_steps": pick.choice((1, 1, 2)),
    }


def loading(pick: Random) -> tuple[Case, Case]:
    """The dtype of the weights, and the mixed precision."""
    kind = pick.choice(("mixed", "mixed", "pure", "bf16", "fp32"))
    dtype = "float32" if kind in ("mixed", "fp32") else "bfloat16"
    return {"dtype": dtype}, {"bf16": kind in ("mixed", "pure")}


def adapters(pick: Random) -> Case:
    """LoRA's settings."""
    found: Case = {"r": pick.choice((8, 16, 32)), "lora_alpha": 32, "task_type": "CAUSAL_LM"}
    found["target_modules"] = pick.choice(("all-linear", ["q_proj", "v_proj"]))
    if pick.random() < 0.4:
        found["lora_dropout"] = 0.05
    return found


def tuned(pick: Random, program: Case, chance: float) -> None:
    """Add LoRA, now and then on a quantized base."""
    if pick.random() > chance:
        return
    program["peft"] = adapters(pick)
    program["load"] = {"dtype": "bfloat16"}
    program["args"]["bf16"] = True
    if pick.random() < 0.5:
        program["quantization"] = {**NF4, "bnb_4bit_use_double_quant": pick.random() < 0.5}


def case(name: str, program: Case, gpus: int = 1) -> Case:
    """A run file."""
    return {
        "model": {"name": name},
        "program": program,
        "hardware": {"gpu": "h200", "num_gpus": gpus},
    }


def trainer(pick: Random) -> Case:
    """transformers.Trainer on one GPU."""
    load, mixed = loading(pick)
    args: Case = {**sizes(pick), **mixed, "optim": pick.choice(OPTIMIZERS)}
    if pick.random() < 0.4:
        args["gradient_checkpointing"] = True
    extra = pick.choice(("none", "none", "liger", "smoothing", "neftune", "evaluation"))
    if extra == "liger":
        args["use_liger_kernel"] = True
    elif extra == "smoothing":
        args["label_smoothing_factor"] = 0.1
    elif extra == "neftune":
        args["neftune_noise_alpha"] = 5.0
    elif extra == "evaluation":
        args |= {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4}
    program: Case = {
        "tool": "transformers.Trainer",
        "args": args,
        "load": load,
        "data": {"seq_len": pick.choice((512, 777, 1024, 2048))},
    }
    tuned(pick, program, 0.35)
    quantized = "quantization" in program
    name = pick.choice(LARGE) if quantized and pick.random() < 0.4 else pick.choice(SMALL)
    if quantized and pick.random() < 0.3:
        program["quantization"] = {"load_in_8bit": True}
    if name == "gpt2-medium":
        program["data"]["seq_len"] = 1024  # its positions
    return case(name, program)


def compiled(pick: Random) -> Case:
    """transformers.Trainer with torch.compile."""
    load, mixed = loading(pick)
    args = {**sizes(pick), **mixed, "torch_compile": True, "gradient_accumulation_steps": 1}
    if pick.random() < 0.25:
        args["gradient_checkpointing"] = True
    program = {
        "tool": "transformers.Trainer",
        "args": args,
        "load": load,
        "data": {"seq_len": pick.choice((512, 1024, 2048))},
    }
    return case(pick.choice((*PLAIN, "tinyllama-1.1b", "qwen3-1.7b")), program)


def sharded(pick: Random) -> Case:
    """transformers.Trainer: a rank of FSDP through Accelerate."""
    version = pick.choice((2, 2, 1))
    args: Case = {**sizes(pick), "bf16": True, "fsdp": True, "fsdp_config": {"version": version}}
    config = args["fsdp_config"]
    if version == 1:
        config["reshard_after_forward"] = pick.choice(("full_shard", "shard_grad_op"))
    else:
        config["reshard_after_forward"] = pick.choice((True, True, False))
    if pick.random() < 0.4:
        config["activation_checkpointing"] = True
    program = {
        "tool": "transformers.Trainer",
        "args": args,
        "load": {"dtype": pick.choice(("float32", "bfloat16"))},
        "data": {"seq_len": pick.choice((1024, 2048))},
    }
    return case(pick.choice((*PLAIN, "llama3.2-3b", "qwen2.5-7b")), program, 8)


def zero(pick: Random) -> Case:
    """transformers.Trainer: a rank of DeepSpeed."""
    stage = pick.choice((1, 2, 3, 3))
    optimization: Case = {"stage": stage}
    if pick.random() < 0.5:
        optimization |= {"reduce_bucket_size": "auto"}
    if stage == 3 and pick.random() < 0.5:
        optimization |= {
            "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
        }
    if pick.random() < 0.3:
        optimization["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    config = {
        "zero_optimization": optimization,
        "bf16": {"enabled": "auto"},
        "gradient_clipping": "auto",
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
    }
    args: Case = {**sizes(pick), "bf16": True, "deepspeed": config}
    if pick.random() < 0.5:
        args["gradient_checkpointing"] = True
    program = {
        "tool": "transformers.Trainer",
        "args": args,
        "load": {"dtype": "bfloat16"},
        "data": {"seq_len": pick.choice((1024, 2048))},
    }
    return case(pick.choice((*PLAIN, "llama3.2-3b", "qwen2.5-7b")), program, 8)


def trl(pick: Random, kind: str, args: Case, data: Case, chance: float = 0.35) -> Case:
    """One of TRL's trainers."""
    load, mixed = loading(pick)
    if not mixed["bf16"]:
        args["bf16"] = False
    if pick.random() < 0.3:
        args["gradient_checkpointing"] = False
    program: Case = {"tool": f"trl.{kind}Trainer", "args": args, "load": load, "data": data}
    tuned(pick, program, chance)
    if "peft" in program:
        args.pop("bf16", None)
    large = "quantization" in program and pick.random() < 0.4
    return case(pick.choice(LARGE) if large else pick.choice(PLAIN), program)


def sft(pick: Random) -> Case:
    """TRL's SFT."""
    length = pick.choice((512, 1024, 2048))
    args: Case = {**sizes(pick), "max_length": length}
    kind = pick.choice(("none", "none", "liger", "nll", "packing"))
    if kind == "liger":
        args["use_liger_kernel"] = True
    elif kind == "nll":
        args["loss_type"] = "nll"
    elif kind == "packing":
        args |= {"packing": True, "packing_strategy": "wrapped"}
    return trl(pick, "SFT", args, {"seq_len": length})


def dpo(pick: Random) -> Case:
    """TRL's DPO."""
    length = pick.choice((512, 1024))
    args: Case = {**sizes(pick), "max_length": length}
    if pick.random() < 0.25:
        args["precompute_ref_log_probs"] = True
    return trl(pick, "DPO", args, {"seq_len": length, "prompt": length // pick.choice((2, 4))})


def reward(pick: Random) -> Case:
    """TRL's reward model."""
    length = pick.choice((512, 1024))
    return trl(
        pick, "Reward", {**sizes(pick), "max_length": length}, {"seq_len": length, "prompt": 128}, 0
    )


def kto(pick: Random) -> Case:
    """TRL's KTO."""
    args = {**sizes(pick), "per_device_train_batch_size": pick.choice((2, 4)), "max_length": 512}
    return trl(pick, "KTO", args, {"seq_len": 512, "prompt": 128}, 0.3)


def rollout(pick: Random, kind: str) -> Case:
    """A step with generation: short completions, since they are sampled token by token."""
    batch = pick.choice((4, 8))
    args: Case = {
        "per_device_train_batch_size": batch,
        "num_generations": 4,
        "max_completion_length": pick.choice((32, 64, 96)),
    }
    if pick.random() < 0.4:
        args["beta"] = 0.04
    return trl(pick, kind, args, {"prompt": pick.choice((128, 256, 512))}, 0.3)


def grpo(pick: Random) -> Case:
    """TRL's GRPO."""
    return rollout(pick, "GRPO")


def rloo(pick: Random) -> Case:
    """TRL's RLOO."""
    return rollout(pick, "RLOO")


def lightning(pick: Random) -> Case:
    """Lightning's Trainer."""
    precision = pick.choice(("bf16-mixed", "16-mixed", "bf16-true", "32-true"))
    args: Case = {"precision": precision, "batch_size": pick.choice((1, 2, 4))}
    if pick.random() < 0.4:
        args["gradient_clip_val"] = 1.0
    if pick.random() < 0.3:
        args["accumulate_grad_batches"] = 2
    if pick.random() < 0.4:
        args["gradient_checkpointing"] = True
    if pick.random() < 0.3:
        args["fused"] = True
        args.pop("gradient_clip_val", None)
    program = {
        "tool": "lightning",
        "args": args,
        "load": {"dtype": "float32"},
        "data": {"seq_len": pick.choice((512, 1024, 2048))},
    }
    return case(pick.choice([name for name in SMALL if name != "gpt2-medium"]), program)


# How many of each kind.
KINDS: Mapping[Callable[[Random], Case], int] = {
    trainer: 44,
    compiled: 14,
    sharded: 12,
    zero: 12,
    sft: 18,
    dpo: 14,
    reward: 6,
    kto: 6,
    grpo: 10,
    rloo: 4,
    lightning: 14,
}


def drawn() -> Iterator[Case]:
    """Every case, with its id and its group."""
    for draw, count in KINDS.items():
        pick = Random(f"{SEED}-{draw.__name__}")
        for number in range(count):
            name = f"{draw.__name__}-{number:02}"
            yield {"id": name, "group": draw.__name__, "config": draw(pick), "rank": 0}


if __name__ == "__main__":
    for row in drawn():
        print(json.dumps(row))
