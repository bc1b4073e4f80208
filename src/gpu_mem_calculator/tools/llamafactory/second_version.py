"""The second version of LLaMA-Factory, which USE_V1=1 starts: its own trainer, not transformers'.

src/llamafactory/v1/core/model_engine.py loads the model, core/base_trainer.py trains it.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..reading.keys import sort_keys
from ..reading.named_files import NamedFiles
from ..reading.option_values import DTYPES, translated
from ..reading.reading import Could, Reading, Section
from ..reading.trainer_arguments import chosen_values, deepspeed_data, type_problems
from ..translation.arguments import Values, argument_table, filled, flat_arguments, tables
from ..translation.tools import TRAINER
from .launch import FactoryProcesses
from .training import BUNDLED, FOLDER

TABLE = argument_table("second_version", FOLDER)
MODEL, DATA = "model", "train_dataset"
LIMITS: Mapping[str, tuple[str, Could]] = tables(__file__)["limits"]
# v1/plugins/model_plugins/initialization.py: where the model is made.
PLACES = {"init_on_default": "cuda", "init_on_meta": "meta", "init_on_rank0": "meta"}
KERNELS = ["rope", "rms_norm", "swiglu"]  # of Liger; require_logits: its loss is left out
STARTED = ("auto", "liger_kernel")


def is_second_version(given: Values) -> bool:
    """Whether a file is one of the second version."""
    return MODEL in given and "model_name_or_path" not in given


def read_second_version(
    reading: Reading, given: Values, files: NamedFiles, launch: FactoryProcesses
) -> Reading:
    """Add what a file of the second version says."""
    without = {name: value for name, value in given.items() if value is not None}
    kept = sort_keys(reading, TABLE, flat_arguments(TABLE, without))
    reading.problems += type_problems(TABLE, kept)
    if reading.problems:
        return reading
    values = chosen_values(TABLE, kept)
    run = reading.run
    run["model"] = {"name": values["model"]}
    if launch.num_gpus is not None:
        run["hardware"] = {"num_gpus": launch.num_gpus}
    if DATA not in given or values["dist_config.name"] == "fsdpturbo":
        kind = "fsdpturbo" if DATA in given else "llamafactory.export"
        run["program"] = {"tool": kind}
        return reading
    _name_limits(reading, values)
    if values["dist_config.name"] == "deepspeed":
        run["program"] = _deepspeed_program(reading, values, files)
    else:
        run |= _own_loop(values, launch)
    length = values["cutoff_len"]
    reading.assumed.append(f"every sequence has {length} tokens, the most that cutoff_len allows")
    reading.assumed.append("the file is trained with sft, not with dpo or rm")
    return reading


def _name_limits(reading: Reading, values: Values) -> None:
    reading.limit("USE_V1=1", *LIMITS["USE_V1"])
    if values["peft_config.name"] == "freeze":
        reading.limit("peft_config.name=freeze", *LIMITS["freeze"])
    kernels = [name.strip() for name in str(values["kernel_config.name"] or "auto").split(",")]
    for name in kernels:
        if name not in STARTED:
            reading.limit(f"kernel_config.name={name}", *LIMITS["kernels"])


def _own_loop(values: Values, launch: FactoryProcesses) -> Section:
    """FSDP 2, or DDP; autocast is not used. Full training has fp32 weights, adapters leave the
    checkpoint's dtype (model_engine.py _init_model); FSDP gathers in bf16 (fsdp2.py get_mp_policy).
    """
    sharded = values["dist_config.name"] == "fsdp2"
    adapters = values["peft_config.name"] == "lora"
    precision = "bf16_mixed" if sharded and values["bf16"] else "fp32"
    training: Section = {
        "batch_size": values["micro_batch_size"],
        "seq_len": values["cutoff_len"],
        "gradient_accumulation_steps": _micro_batches(values, launch),
        "precision": "bf16_pure" if adapters else precision,
        "optimizer": "adamw",
        "gradient_clipping": values["max_grad_norm"],
        "attention": values["flash_attn"],
        "loss": "full_upcast",
    }
    training |= filled(
        activation_checkpointing=values["enable_activation_checkpointing"] and "full",
        liger=KERNELS if "liger_kernel" in str(values["kernel_config.name"]) else [],
        lora=_lora(values) if adapters else {},
    )
    training |= _quantization(values) | filled(pytorch_alloc_conf=launch.allocator)
    return {"training": training, "engine": _engine(values, sharded=sharded)}


def _engine(values: Values, *, sharded: bool) -> Section:
    made = values["init_config.name"] or "init_on_default"
    place = translated("init_config.name", made, PLACES)
    if not sharded:
        return {"type": "pytorch_ddp", "init_device": place}
    strategy = "full_shard" if values["dist_config.reshard_after_forward"] else "shard_grad_op"
    engine: Section = {
        "type": "fsdp",
        "fsdp_version": 2,
        "sharding_strategy": strategy,
        "reduce_dtype": "fp32",
        "init_device": place,
    }
    if values["dist_config.offload_params"]:
        engine["cpu_offload"] = True
    return engine


def _lora(values: Values) -> Section:
    target = values["peft_config.target_modules"]
    names = [target] if isinstance(target, str) else list(target)
    return {
        "r": values["peft_config.r"],
        "target_modules": "all-linear" if names == ["all"] else names,
        "dropout": values["peft_config.lora_dropout"],
        "dora": bool(values["peft_config.use_dora"]),
        "adapter_dtype": "fp32",
    }


def _quantization(values: Values) -> Section:
    bits = values["quant_config.quantization_bit"]
    if not values["quant_config.name"]:
        return {}
    if bits == 8:
        return {"quantization": "int8"}
    compute = values["quant_config.compute_dtype"]
    return {
        "quantization": "nf4",
        "double_quant": values["quant_config.double_quantization"],
        "nf4_compute_dtype": translated("quant_config.compute_dtype", compute, DTYPES),
    }


def _micro_batches(values: Values, launch: FactoryProcesses) -> int:
    """Micro-batches of a step: one, unless global_batch_size says more."""
    each: int = values["micro_batch_size"] * (launch.num_gpus or 1)
    whole = values["global_batch_size"]
    return max(1, whole // each) if isinstance(whole, int) else 1


def _deepspeed_program(reading: Reading, values: Values, files: NamedFiles) -> Section:
    """DeepSpeed through Accelerate, with its file (plugins/trainer_plugins/distributed)."""
    config = deepspeed_data(reading, values["dist_config.config_file"], files, BUNDLED)
    program: Section = {
        "tool": TRAINER,
        "args": {
            "per_device_train_batch_size": values["micro_batch_size"],
            "max_grad_norm": values["max_grad_norm"],
            "optim": "adamw_torch",
            "bf16": True,
            "gradient_checkpointing": values["enable_activation_checkpointing"],
        },
        "load": {"dtype": "auto", "attn_implementation": values["flash_attn"]},
        "data": {"seq_len": values["cutoff_len"]},
        "deepspeed": config,
    }
    if values["peft_config.name"] == "lora":
        lora = _lora(values)
        program["peft"] = {"r": lora["r"], "target_modules": lora["target_modules"]}
    return program
