"""torchtitan's job configuration as keys of a run file (torchtitan 0.2.2 train.py,
models/llama3/infra/parallelize.py).

torchtitan's Llama 3 models, by `model.flavor` (0.2.2 models/llama3/__init__.py llama3_args).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from ...runfile.program import Program, Section, Setup, Translation
from ..translation.arguments import Values, tables
from ..translation.shapes import shape_problems

OPTIMIZERS = {"Adam": "adam", "AdamW": "adamw"}  # components/optimizer.py build_optimizers
IMPLEMENTATIONS = {"fused": "fused", "foreach": "foreach", "for-loop": "forloop"}
# training.dtype, training.mixed_precision_param -> precision
PRECISIONS = {
    ("float32", "float32"): "fp32",
    ("float32", "bfloat16"): "bf16_mixed",
    ("bfloat16", "bfloat16"): "bf16_pure",
}
REPLICATE, SHARD = (f"parallelism.data_parallel_{name}_degree" for name in ("replicate", "shard"))
FLAVOR, RESHARD = "model.flavor", "parallelism.fsdp_reshard_after_forward"
KINDS = {"default": "full_shard", "never": "shard_grad_op"}
HYBRID_KINDS = {"default": "hybrid_shard", "never": "hybrid_shard_zero2"}


class Flavor(Struct, frozen=True, kw_only=True):
    """The arguments of one model, with the names and defaults of models/llama3/model/args.py."""

    dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int | None = None
    vocab_size: int = 128256
    multiple_of: int = 256
    ffn_dim_multiplier: float | None = None


FLAVORS = msgspec.convert(tables(__file__)["flavors"], dict[str, Flavor])


def flavor_shape(flavor: Flavor) -> dict[str, Any]:
    """The shape by keys of the model section (models/llama3/model/model.py FeedForward)."""
    wide = int(2 * 4 * flavor.dim / 3)
    wide = int((flavor.ffn_dim_multiplier or 1) * wide)
    return {
        "num_layers": flavor.n_layers,
        "hidden_size": flavor.dim,
        "num_attention_heads": flavor.n_heads,
        "num_key_value_heads": flavor.n_kv_heads or flavor.n_heads,
        "intermediate_size": -(-wide // flavor.multiple_of) * flavor.multiple_of,
        "vocab_size": flavor.vocab_size,
        "tie_word_embeddings": False,
    }


def translate(program: Program, values: Values, setup: Setup) -> Translation:
    """The keys of torchtitan's trainer, which zeroes gradients before the forward pass."""
    result = Translation(model={"implementation": "torchtitan"})
    _add_model(program, values, setup, result)
    result.training |= {
        "batch_size": values["training.local_batch_size"],
        "seq_len": values["training.seq_len"],
        "gradient_clipping": values["training.max_norm"],
        "zero_grad": "before_forward",
        "recompute": _recompute(values),
    }
    if values["checkpoint.enable"] and values["checkpoint.async_mode"] != "disabled":
        result.training["saving"] = "async"
    for key, name, words in (
        ("optimizer", "optimizer.name", OPTIMIZERS),
        ("optimizer_implementation", "optimizer.implementation", IMPLEMENTATIONS),
    ):
        _add_word(result, key, name, values[name], words)
    dtypes = (values["training.dtype"], values["training.mixed_precision_param"])
    if dtypes in PRECISIONS:
        result.training["precision"] = PRECISIONS[dtypes]
    else:
        what = f"program.args: training.dtype={dtypes[0]!r} and mixed_precision_param={dtypes[1]!r}"
        result.problems.append(f"{what} are not modelled; use 'float32' and 'bfloat16'")
    _add_parallelism(values, setup, result)
    return result


def _add_model(program: Program, values: Values, setup: Setup, result: Translation) -> None:
    """The model of a flavor, where the run file has none; else a flavor must agree."""
    flavor = program.args.get(FLAVOR) if setup.has_model else values[FLAVOR]
    if flavor is None:
        return
    if flavor not in FLAVORS:
        choice = f"it can be {', '.join(FLAVORS)}"
        result.problems.append(f"program.args.{FLAVOR}={flavor!r} is not modelled; {choice}")
    elif setup.has_model:
        meant = flavor_shape(FLAVORS[flavor])
        result.problems += shape_problems(meant, dict.fromkeys(meant, FLAVOR), setup)
    else:
        shape = flavor_shape(FLAVORS[flavor])
        shape["num_hidden_layers"] = shape.pop("num_layers")
        positions = {"max_position_embeddings": 131072}
        result.model["config"] = {"model_type": "llama", **shape, **positions}


def _recompute(values: Values) -> Any:
    """Activation checkpointing; only keys that act (distributed/activation_checkpoint.py)."""
    mode = values["activation_checkpoint.mode"]
    if mode == "none":
        return "none"
    option = {"selective_ac_option": values["activation_checkpoint.selective_ac_option"]}
    return {
        "mode": mode,
        **(option if mode == "selective" else {}),
        "early_stop": values["activation_checkpoint.early_stop"],
    }


def _add_word(
    result: Translation, key: str, name: str, value: Any, words: Mapping[str, str]
) -> None:
    if value in words:
        result.training[key] = words[value]
    else:
        choice = " or ".join(map(repr, words))
        result.problems.append(f"program.args.{name}={value!r} must be {choice}")


def _add_parallelism(values: Values, setup: Setup, result: Translation) -> None:
    """FSDP 2, or one GPU under autocast, as fully_shard is only called for several shards
    (distributed/parallel_dims.py fsdp_enabled, distributed/utils.py maybe_enable_amp).
    """
    gpus, copies, shards = setup.num_gpus, values[REPLICATE], values[SHARD]
    shards = gpus // copies if shards == -1 else shards
    if copies * shards != gpus:
        what = f"program.args: {REPLICATE}={copies} x {SHARD}={shards} are not the {gpus} GPUs"
        result.problems.append(f"{what}; set hardware.num_gpus={copies * shards}")
    elif shards == 1 and copies > 1:
        fix = f"set {SHARD} above 1"
        result.problems.append(f"program.args.{REPLICATE}={copies} is DDP, not modelled; {fix}")
    elif gpus == 1:
        result.engine = {"type": "pytorch_ddp"}
    else:
        _add_fsdp(values, copies, shards, result)
    if values["training.enable_cpu_offload"]:
        if gpus == 1:
            why = "needs several GPUs; leave it out"
            result.problems.append(f"program.args.training.enable_cpu_offload=true {why}")
        result.engine["cpu_offload"] = True
    _add_accumulation(values, gpus, result)


def _add_fsdp(values: Values, copies: int, shards: int, result: Translation) -> None:
    """fully_shard, which by default keeps final norm and head gathered."""
    words = HYBRID_KINDS if copies > 1 else KINDS
    kind = values[RESHARD]
    if kind not in words:
        choice = " or ".join(map(repr, words))
        result.problems.append(f"program.args.{RESHARD}={kind!r} is not modelled; use {choice}")
        return
    engine: Section = {
        "type": "fsdp",
        "fsdp_version": 2,
        "sharding_strategy": words[kind],
        "reduce_dtype": "fp32",
    }
    result.engine = engine | ({"hybrid_shard_size": shards} if copies > 1 else {})


def _add_accumulation(values: Values, gpus: int, result: Translation) -> None:
    """Micro-batches of a step (train.py Trainer.__init__)."""
    whole, part = values["training.global_batch_size"], values["training.local_batch_size"] * gpus
    if whole < 0:
        return
    if whole % part:
        fix = f"must be a multiple of the {part} sequences of all GPUs' micro-batches"
        result.problems.append(f"program.args.training.global_batch_size={whole} {fix}")
    else:
        result.training["gradient_accumulation_steps"] = whole // part
