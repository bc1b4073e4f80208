"""LLaMA-Factory on Megatron-Core, by mcore_adapter (USE_MCA=1) or Megatron Bridge."""

from __future__ import annotations

from collections.abc import Mapping
from math import lcm
from typing import Any

from ...programs.translation.arguments import argument_table
from ..reading.reading import Limit, Reading, Section
from .adapters import lora_keys
from .arguments import FOLDER, OWN_TABLE, TABLE
from .launch import FactoryProcesses

MEGATRON = argument_table("megatron", FOLDER)
WITH_MEGATRON = {**TABLE, **MEGATRON}
# Arguments of the Trainer that its own loop reads, and those that Megatron has others for.
AXES = {
    "tensor_parallel_size": "tensor_model_parallel_size",
    "pipeline_parallel_size": "pipeline_model_parallel_size",
    "context_parallel_size": "context_parallel_size",
    "expert_parallel_size": "expert_model_parallel_size",
    "virtual_pipeline_size": "virtual_pipeline_model_parallel_size",
    "sequence_parallel": "sequence_parallel",
}
OPTIONS = (
    *("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"),
    *("masked_softmax_fusion", "moe_token_dispatcher_type"),
)
FIRST = "it drives Megatron-Core with defaults of its own; the estimate has those of Megatron-LM"


def is_megatron(given: Mapping[str, Any], launch: FactoryProcesses) -> bool:
    """Whether a file is for Megatron: by the environment, or by a key that nothing else has."""
    return bool(launch.megatron) or any(key in MEGATRON and key not in OWN_TABLE for key in given)


def megatron_run(reading: Reading, values: Mapping[str, Any], launch: FactoryProcesses) -> None:
    """Add the sections of a run on Megatron-Core."""
    training: Section = {
        "batch_size": values["per_device_train_batch_size"],
        "seq_len": values["cutoff_len"],
        "gradient_accumulation_steps": values["gradient_accumulation_steps"],
        "precision": "fp16_mixed" if values["fp16"] else "bf16_mixed",
        "gradient_clipping": values["max_grad_norm"] or 0,
    }
    if values["finetuning_type"] == "lora":
        training["lora"] = lora_keys(values)
    training |= _recompute(reading, values)
    run = reading.run
    run["training"] = training
    axes = {key: values[name] for key, name in AXES.items() if values.get(name) is not None}
    run["parallelism"] = {key: value for key, value in axes.items() if value not in (1, False)}
    engine: Section = {
        "type": "megatron_lm",
        "distributed_optimizer": bool(values["use_distributed_optimizer"]),
    }
    run["engine"] = engine | {name: values[name] for name in OPTIONS if values[name] is not None}
    run["hardware"] = {"num_gpus": launch.num_gpus or _fewest_gpus(reading, values)}
    name = launch.megatron or "a Megatron back end"
    reading.limits.append(Limit(key=name, why=FIRST, could="either"))


def _recompute(reading: Reading, values: Mapping[str, Any]) -> Section:
    kind = values["recompute_granularity"]
    if not kind:
        return {}
    if values["recompute_method"] == "block" or (values["recompute_num_layers"] or 1) > 1:
        why = "a part of the layers is computed again; the estimate computes each layer again"
        key = f"recompute_method={values['recompute_method']}"
        reading.limits.append(Limit(key=key, why=why, could="more"))
    return {"activation_checkpointing": "full" if kind == "full" else "selective"}


def _fewest_gpus(reading: Reading, values: Mapping[str, Any]) -> int:
    """The fewest GPUs on which the sizes of parallelism fit, without data parallelism."""
    dense = values["tensor_model_parallel_size"] * values["context_parallel_size"]
    experts = values["expert_model_parallel_size"] * values["tensor_model_parallel_size"]
    count: int = values["pipeline_model_parallel_size"] * lcm(dense, experts)
    reading.assumed.append(f"{count} GPUs, the fewest for these sizes of parallelism")
    return count
