"""LLaMA-Factory on Megatron-Core, by mcore_adapter (USE_MCA=1) or Megatron Bridge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..reading.megatron_axes import fewest_gpus, parallelism
from ..reading.reading import Limit, Reading, Section
from ..translation.arguments import argument_table
from .adapters import training_lora
from .arguments import FOLDER, OWN_TABLE, TABLE
from .launch import FactoryProcesses

MEGATRON = argument_table("megatron", FOLDER)
WITH_MEGATRON = {**TABLE, **MEGATRON}
# Arguments of the Trainer that its own loop reads, and those that Megatron has others for.
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
        training["lora"] = training_lora(values)
    training |= _recompute(reading, values)
    run = reading.run
    run["training"] = training
    run["parallelism"] = parallelism(values)
    engine: Section = {
        "type": "megatron_lm",
        "distributed_optimizer": bool(values["use_distributed_optimizer"]),
    }
    run["engine"] = engine | {name: values[name] for name in OPTIONS if values[name] is not None}
    run["hardware"] = {"num_gpus": launch.num_gpus or _fewest(reading, values)}
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


def _fewest(reading: Reading, values: Mapping[str, Any]) -> int:
    return fewest_gpus(reading, values, values["tensor_model_parallel_size"])
