"""`megatron sft` and `pt` of ms-swift: Megatron-Core under the names of its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..reading.megatron_axes import fewest_gpus, parallelism
from ..reading.reading import Limit, Reading, Section
from ..translation.arguments import tables
from .processes import SwiftProcesses, add_hardware
from .tuners import training_lora

# Options of the engine that have the same names, where they are not None.
OPTIONS = tuple(tables(__file__)["options"])
EXPERTS = (
    *("expert_tensor_parallel_size", "moe_token_dispatcher_type", "moe_expert_capacity_factor"),
    "moe_pad_expert_input_to_capacity",
)
USUAL_OPTIMIZERS = {"adam": "adamw", "sgd": "sgd_momentum"}


def megatron_run(reading: Reading, values: Mapping[str, Any], processes: SwiftProcesses) -> None:
    """Add the sections of a run on Megatron-Core."""
    add_hardware(reading, processes)
    run = reading.run
    if values["method"] == "rlhf":
        run["program"] = {"tool": "swift.megatron_rlhf"}
        return
    gpus = (run.get("hardware") or {}).get("num_gpus") or _fewest(reading, values)
    run["hardware"] = {**run.get("hardware", {}), "num_gpus": gpus}
    training: Section = {
        "batch_size": values["micro_batch_size"],
        "gradient_accumulation_steps": _micro_batches(values, gpus),
        "precision": "fp16_mixed" if values["fp16"] else "bf16_mixed",
        "gradient_clipping": values["clip_grad"] or 0,
        "optimizer": USUAL_OPTIMIZERS.get(values["optimizer"], "adamw"),
    }
    length = values["packing_length"] or values["max_length"]
    if isinstance(length, int) and length > 0:
        training["seq_len"] = length
        reading.assumed.append(f"every sequence has {length} tokens")
    else:
        reading.assumed.append("every sequence is as long as the model allows: give --max_length")
    if values["tuner_type"] != "full":
        training["lora"] = training_lora(values)
    training |= _recompute(values)
    if processes.allocator:
        training["pytorch_alloc_conf"] = processes.allocator
    run["training"] = training
    run["parallelism"] = parallelism(values)
    if values["tensor_model_parallel_size"] == 1:
        run["parallelism"].pop("sequence_parallel", None)  # ms-swift switches it off
    run["engine"] = _engine(values)
    _name_limits(reading, values)


def _engine(values: Mapping[str, Any]) -> Section:
    engine: Section = {
        "type": "megatron_lm",
        "distributed_optimizer": bool(values["use_distributed_optimizer"]),
    }
    names = (*OPTIONS, *(EXPERTS if values["expert_model_parallel_size"] > 1 else ()))
    engine |= {name: values[name] for name in names if values[name] is not None}
    if str(engine.get("attention_backend")).startswith("flash_"):
        engine["attention_backend"] = "flash"  # with a version of flash-attn
    group = values["microbatch_group_size_per_vp_stage"]
    if group is not None:
        engine["microbatch_group_size_per_virtual_pipeline_stage"] = group
    return engine


def _recompute(values: Mapping[str, Any]) -> Section:
    """Attention alone is computed again by default (recompute_granularity selective)."""
    kind = values["recompute_granularity"]
    if kind in (None, "none"):
        return {}
    if kind == "full":
        count, method = values["recompute_num_layers"] or 1, values["recompute_method"]
        policy = {"recompute_method": method or "uniform", "recompute_num_layers": count}
        if count == 1 and method != "block":
            return {"activation_checkpointing": "full"}
        return {"recompute": {"recompute_granularity": "full", **policy}}
    modules = values["recompute_modules"]
    modules = [modules] if isinstance(modules, str) else modules
    return {"recompute": {"recompute_granularity": "selective", "recompute_modules": modules}}


def _name_limits(reading: Reading, values: Mapping[str, Any]) -> None:
    if values["optimizer"] not in USUAL_OPTIMIZERS:
        why = "this optimizer is not modelled under Megatron; the estimate has Adam's"
        key = f"optimizer={values['optimizer']}"
        reading.limits.append(Limit(key=key, why=why, could="either"))
    if values["cross_entropy_fusion_impl"] == "te":
        why = "Transformer Engine's loss is not read here; the estimate has Megatron's"
        reading.limits.append(Limit(key="cross_entropy_fusion_impl=te", why=why, could="less"))


def _micro_batches(values: Mapping[str, Any], gpus: int) -> int:
    """Micro-batches of a step: global_batch_size over all data-parallel ranks."""
    model = values["tensor_model_parallel_size"] * values["pipeline_model_parallel_size"]
    ranks: int = max(1, gpus // (model * values["context_parallel_size"]))
    return max(1, int(values["global_batch_size"]) // (int(values["micro_batch_size"]) * ranks))


def _fewest(reading: Reading, values: Mapping[str, Any]) -> int:
    return fewest_gpus(reading, values, values["expert_tensor_parallel_size"])
