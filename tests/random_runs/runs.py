"""Random run files: run number `index` of a seed is always the same one."""

from __future__ import annotations

from random import Random
from typing import Any

from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read

from .models import MODELS
from .sizes import RATES, flip, log_uniform

RunDict = dict[str, Any]
MOST_TOKENS = 8192  # of a micro-batch
SLOW = {"jamba": 96, "mamba2": 512}  # scans that Python runs token by token, chunk by chunk
EXPERTS = (
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "phimoe",
    "glm4_moe",
    "deepseek_v2",
    "deepseek_v3",
    "olmoe",
    "gpt_oss",
    "llama4_text",
    "jamba",
    "dots1",
    "minimax_m2",
)
OPTIMIZERS = ("adamw", "adamw", "adam", "sgd", "sgd_momentum", "adafactor", "muon")
PRECISIONS = ("fp32", "bf16_mixed", "bf16_mixed", "fp16_mixed", "bf16_pure", "fp16_pure")
STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard")
# transformers has no other attention for these
EAGER = ("gpt_neo", "gptj", "gpt_oss", "bloom", "mpt", "mamba2")
# no GPU's memory is allocated or seen: what counts is the kernels its compute capability takes
GPUS = ("h200", "h200", "a100-80gb-sxm")


def run_file(seed: int, index: int) -> RunDict:
    """Run `index` of a seed: families take turns, everything else is drawn.

    What the engine or the optimizer refuses is drawn again.
    """
    rng = Random(f"{seed}/{index}")
    family = tuple(MODELS)[index % len(MODELS)]
    while True:
        drawn = _drawn(rng, family)
        try:
            resolve(read(drawn).file)
        except InputError:
            continue
        return drawn


def _drawn(rng: Random, family: str) -> RunDict:
    seq = log_uniform(rng, 32, SLOW.get(family, 4096))
    sharded = rng.random() < 0.4
    ranks = rng.randint(1, 8) if sharded or flip(rng) else 1
    training = _training(rng, seq, sharded=sharded)
    if family in EAGER:
        training["attention"] = "eager"
    if family in EXPERTS and "lora" in training:  # other names would mean the experts, too
        training["lora"]["target_modules"] = ["o_proj"]
    if training["optimizer"] == "muon" and (ranks > 1 or family in (*EXPERTS, *SLOW)):
        training["optimizer"] = "sgd"  # torch's Muon takes matrices only, and leaves the rest alone
    if sharded and family != "mamba2":
        engine = _sharded(rng, ranks, training["precision"])
    else:
        engine = {"type": "pytorch_ddp"}
        if ranks > 1 and rng.random() < 0.3:
            engine["gradient_as_bucket_view"] = True
    return {
        "model": {"config": MODELS[family](rng, seq)},
        "training": training,
        "parallelism": {"data_parallel_size": ranks},
        "engine": engine,
        "hardware": {"gpu": rng.choice(GPUS), "num_gpus": ranks},
    }


def _training(rng: Random, seq: int, *, sharded: bool) -> RunDict:
    optimizer = rng.choice(OPTIMIZERS)
    precision = rng.choice(PRECISIONS)
    found: RunDict = {
        "batch_size": rng.randint(1, min(8, max(1, MOST_TOKENS // seq))),
        "seq_len": seq,
        "gradient_accumulation_steps": rng.choice((1, 1, 2, 3)),
        "optimizer": optimizer,
        "precision": precision,
        "attention": rng.choice(("sdpa", "sdpa", "eager")),
        "gradient_clipping": rng.choice((0.0, 1.0)),
    }
    if optimizer in ("adamw", "adam", "sgd", "sgd_momentum"):
        found["optimizer_implementation"] = rng.choice(("foreach", "foreach", "fused", "forloop"))
    if sharded and optimizer.startswith("sgd"):  # torch 2.13 has no fused step on shards
        found["optimizer_implementation"] = "foreach"
    if rng.random() < 0.35:
        found["activation_checkpointing"] = rng.choice(("full", "full", 2, 3))
        found["checkpoint_reentrant"] = not sharded and flip(rng)
    if not sharded and precision.endswith("pure") and rng.random() < 0.2:
        found["autocast"] = True
    if rng.random() < 0.2:
        narrow = precision.partition("_")[0]  # PEFT makes no adapter narrower than the weights
        widths = ("fp32", narrow) if precision.endswith("pure") else ("fp32",)
        found["lora"] = {
            "r": rng.choice((4, 8, 16, 64)),
            "target_modules": "all-linear",
            "dora": flip(rng),
            "dropout": rng.choice(RATES),
            "adapter_dtype": rng.choice(widths),
        }
    return found


def _sharded(rng: Random, ranks: int, precision: str) -> RunDict:
    strategy = rng.choice(STRATEGIES)
    found: RunDict = {"type": "fsdp", "sharding_strategy": strategy}
    if flip(rng):
        found["reduce_dtype"] = rng.choice(("fp32", precision.partition("_")[0]))
    if strategy == "hybrid_shard":
        found["hybrid_shard_size"] = rng.choice([n for n in range(1, ranks + 1) if ranks % n == 0])
    elif strategy != "no_shard" and flip(rng):
        found["reshard_root_after_forward"] = flip(rng)
    return found
