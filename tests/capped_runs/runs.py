"""Run files of trials under a cap: what each group of engines draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from tests.random_runs.sizes import flip, log_uniform

from .models import draw_model

RunDict = dict[str, Any]
MOST_TOKENS = 16384  # of a micro-batch
ALL_LINEAR = "all-linear"
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
LOCAL = {  # Megatron-Core without Apex and Transformer Engine
    "transformer_implementation": "local",
    "masked_softmax_fusion": False,
    "gradient_accumulation_fusion": False,
}
STRATEGIES = ("full_shard", "full_shard", "shard_grad_op", "no_shard", "hybrid_shard")
ZERO: Mapping[str, tuple[Any, ...]] = {  # options of ZeRO that change memory
    "reduce_bucket_size": (50_000_000, 200_000_000, 20_000_000),
    "overlap_comm": (True, False),
    "contiguous_gradients": (True, False),
}
ZERO3: Mapping[str, tuple[Any, ...]] = {
    "stage3_prefetch_bucket_size": (0, 10_000_000, 200_000_000),
    "stage3_max_live_parameters": (0, 200_000_000),
    "stage3_param_persistence_threshold": (0, 1_000_000),
    "sub_group_size": (100_000_000,),
}


def sequence(rng: Random, low: int = 160, high: int = 4096) -> int:
    """A length: half of them multiples of 128, the rest even or odd."""
    seq = log_uniform(rng, low, high)
    return max(128, seq // 128 * 128) if flip(rng) else seq


def training(rng: Random, seq: int, precisions: str, optimizers: str) -> RunDict:
    """The choices that every engine has."""
    return {
        "batch_size": rng.randint(1, max(1, min(16, MOST_TOKENS // seq))),
        "seq_len": seq,
        "gradient_accumulation_steps": rng.choice((1, 1, 1, 2, 3)),
        "optimizer": rng.choice(optimizers.split()),
        "precision": rng.choice(precisions.split()),
        "attention": rng.choice(("sdpa", "sdpa", "sdpa", "eager")),
        "gradient_clipping": rng.choice((1.0, 1.0, 0.0)),
        "activation_checkpointing": rng.choice(("none", "none", "full")),
    }


def run_dict(rng: Random, seq: int, *, ranks: int, even: bool = False, **sections: Any) -> RunDict:
    """A run file of a drawn model on one or more H200."""
    return {
        "model": {"config": draw_model(rng, seq, even=even)},
        "parallelism": {"data_parallel_size": ranks},
        "hardware": {"gpu": "h200", "num_gpus": ranks},
        **sections,
    }


def _implementation(rng: Random, chosen: RunDict, kinds: str) -> RunDict:
    if chosen["optimizer"] in ("adamw", "adam", "sgd", "sgd_momentum"):
        chosen["optimizer_implementation"] = rng.choice(kinds.split())
    return chosen


def single(rng: Random, number: int) -> RunDict:
    """One GPU, plain torch."""
    seq = sequence(rng)
    precisions = "bf16_mixed bf16_mixed bf16_pure fp16_mixed fp32"
    chosen = training(rng, seq, precisions, "adamw adamw adamw adam sgd_momentum sgd adafactor")
    _implementation(rng, chosen, "foreach foreach fused forloop")
    if chosen["activation_checkpointing"] == "full" and flip(rng):
        chosen["checkpoint_reentrant"] = True
    return run_dict(rng, seq, ranks=1, training=chosen, engine={"type": "pytorch_ddp"})


def ddp(rng: Random, number: int) -> RunDict:
    """Torch's DistributedDataParallel."""
    seq = sequence(rng)
    chosen = training(rng, seq, "bf16_mixed bf16_pure fp32", "adamw adamw sgd_momentum adafactor")
    _implementation(rng, chosen, "foreach foreach fused")
    engine = {"type": "pytorch_ddp", "gradient_as_bucket_view": flip(rng)}
    return run_dict(rng, seq, ranks=rng.choice((2, 3, 8, 16)), training=chosen, engine=engine)


def fsdp(rng: Random, number: int) -> RunDict:
    """FSDP2."""
    seq, ranks = sequence(rng), rng.choice((2, 4, 7, 8, 32))
    chosen = training(rng, seq, "bf16_mixed bf16_mixed bf16_pure fp32", "adamw adamw adamw sgd")
    engine: RunDict = {"type": "fsdp", "sharding_strategy": STRATEGIES[number % len(STRATEGIES)]}
    if engine["sharding_strategy"] == "hybrid_shard":
        engine["hybrid_shard_size"] = 2 if ranks % 2 == 0 else 1
    if flip(rng):
        engine["reduce_dtype"] = rng.choice(("fp32", "bf16"))
    if engine["sharding_strategy"] == "full_shard" and rng.random() < 0.2:
        engine["cpu_offload"] = True
    return run_dict(rng, seq, ranks=ranks, training=chosen, engine=engine)


def deepspeed(rng: Random, number: int) -> RunDict:
    """DeepSpeed, ZeRO-0 to ZeRO-3, with everything on the GPU."""
    seq, stage = sequence(rng), number % 4
    precisions = "bf16_mixed bf16_mixed bf16_mixed fp16_mixed fp32"
    chosen = training(rng, seq, precisions, "adamw adamw adamw adam sgd_momentum")
    engine = {"type": "deepspeed", "zero_stage": stage, **_zero_options(rng, stage)}
    ranks = rng.choice((2, 4, 8, 16))
    return _unpadded(run_dict(rng, seq, ranks=ranks, training=chosen, engine=engine))


def _unpadded(run: RunDict) -> RunDict:
    """Without a padding token: transformers zeroes its row, which ZeRO-3 has sharded by then."""
    config = {**run["model"]["config"], "pad_token_id": None}
    return {**run, "model": {"config": config}}


def _zero_options(rng: Random, stage: int) -> RunDict:
    tables = {1: ZERO, 2: ZERO, 3: {**ZERO, **ZERO3}}.get(stage, {})
    return {key: rng.choice(values) for key, values in tables.items() if rng.random() < 0.3}


def deepspeed_offload(rng: Random, number: int) -> RunDict:
    """DeepSpeed, ZeRO-1 to ZeRO-3, with optimizer states or parameters in host RAM."""
    seq, stage = sequence(rng), (1, 2, 3, 3)[number % 4]
    chosen = training(rng, seq, "bf16_mixed bf16_mixed fp16_mixed", "adamw")
    engine = {"type": "deepspeed", "zero_stage": stage, "offload_optimizer": "cpu"}
    if stage == 3 and flip(rng):
        engine["offload_param"] = "cpu"
    ranks = rng.choice((4, 8, 16))
    return _unpadded(run_dict(rng, seq, ranks=ranks, training=chosen, engine=engine))


def lora(rng: Random, number: int) -> RunDict:
    """LoRA of PEFT on frozen 16-bit weights."""
    seq = sequence(rng)
    chosen = training(rng, seq, "bf16_pure bf16_pure bf16_mixed", "adamw adamw adamw_8bit")
    chosen["lora"] = _adapters(rng)
    if chosen["precision"] == "bf16_pure":
        chosen["autocast"] = flip(rng)
    return run_dict(rng, seq, ranks=1, training=chosen, engine={"type": "pytorch_ddp"})


def _adapters(rng: Random) -> RunDict:
    return {
        "r": rng.choice((8, 16, 64)),
        "target_modules": rng.choice((ALL_LINEAR, ATTENTION)),
        "dropout": rng.choice((0.0, 0.0, 0.1)),
        "dora": rng.random() < 0.15,
        "adapter_dtype": "fp32",
    }


def qlora(rng: Random, number: int) -> RunDict:
    """LoRA of PEFT on weights in nf4 or int8 of bitsandbytes."""
    seq = sequence(rng)
    chosen = training(rng, seq, "bf16_pure", "adamw adamw adamw_8bit paged_adamw_8bit")
    chosen |= {"lora": {**_adapters(rng), "dora": False}, "autocast": True, "attention": "sdpa"}
    chosen["quantization"] = ("nf4", "nf4", "int8")[number % 3]
    if chosen["quantization"] == "nf4":
        chosen["double_quant"] = flip(rng)
    chosen["upcast_unquantized"] = flip(rng)  # as PEFT's prepare_model_for_kbit_training does
    engine = {"type": "pytorch_ddp"}
    return run_dict(rng, seq, ranks=1, even=True, training=chosen, engine=engine)


def megatron(rng: Random, number: int) -> RunDict:
    """Megatron-Core with tensor, sequence and pipeline parallelism."""
    seq = 64 * rng.randint(4, 48)
    tp, pp, dp = rng.choice((1, 2, 4)), (1, 1, 2, 4)[number % 4], rng.choice((1, 2, 4))
    chosen = training(rng, seq, "bf16_mixed bf16_mixed bf16_mixed fp32", "adamw")
    del chosen["attention"]
    chosen["optimizer_implementation"] = "foreach"
    chosen["activation_checkpointing"] = rng.choice(("none", "selective", "full"))
    chosen["gradient_accumulation_steps"] *= pp
    engine = {"type": "megatron_lm", "distributed_optimizer": flip(rng), **LOCAL}
    mesh = {"data_parallel_size": dp, "tensor_parallel_size": tp, "pipeline_parallel_size": pp}
    mesh["sequence_parallel"] = tp > 1 and flip(rng)
    run = run_dict(rng, seq, ranks=tp * pp * dp, even=True, training=chosen, engine=engine)
    return {**run, "parallelism": mesh}


def inference(rng: Random, number: int) -> RunDict:
    """Transformers: the prompt alone, or generate."""
    prompt = sequence(rng, 256, 8192)
    options: RunDict = {
        "engine": "transformers",
        "dtype": rng.choice(("bf16", "bf16", "fp16", "fp32")),
        "batch_size": rng.randint(1, max(1, min(32, 32768 // prompt))),
        "prompt_len": prompt,
        "new_tokens": rng.choice((0, 4, 9, 24)),
        "attention": rng.choice(("sdpa", "sdpa", "eager")),
    }
    if options["new_tokens"]:
        options["cache_implementation"] = rng.choice(("dynamic", "dynamic", "static"))
        options["num_beams"] = rng.choice((1, 1, 1, 3))
    if rng.random() < 0.25:
        options["quantization"] = rng.choice(("nf4", "int8"))
    model = {"config": draw_model(rng, prompt + 24, even=True)}
    return {"model": model, "inference": options, "hardware": {"gpu": "h200", "num_gpus": 1}}


# Group -> how many cases, and what draws one: its random numbers and its number in the group.
GROUPS: Mapping[str, tuple[int, Callable[[Random, int], RunDict]]] = {
    "single": (18, single),
    "ddp": (16, ddp),
    "fsdp": (18, fsdp),
    "deepspeed": (22, deepspeed),
    "deepspeed-offload": (16, deepspeed_offload),
    "lora": (16, lora),
    "qlora": (16, qlora),
    "megatron": (20, megatron),
    "inference": (18, inference),
}
