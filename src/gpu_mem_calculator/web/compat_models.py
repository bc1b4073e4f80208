"""Models in the reference calculator's fields: the presets, and models of the hub."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from .. import catalog
from ..catalog.hub.names import is_hub_name
from ..catalog.model_names import spellings
from ..report.lines import count
from ..run.run import DEFAULT_OPTIMIZER
from ..run.served_models import serving_section
from ..runfile.config import ModelConfig
from ..runfile.find_model.model_facts import expert_facts
from ..runfile.find_model.model_source import SAME_KEYS, ResolvedModel, find_model
from ..runfile.resolve.training_defaults import default_sequence
from ..runfile.text.errors import InputError

FIELDS = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size", "max_seq_len")
REQUIRED = ("num_parameters", *FIELDS)
EXPERTS = ("num_experts", "top_k", "expert_intermediate_size")
# A preset trains with ZeRO-3 on one node, so that most of them fit.
TRAINING = {
    "batch_size": 1,
    "gradient_accumulation_steps": 1,
    "optimizer": DEFAULT_OPTIMIZER,
    "dtype": "bf16",
    "activation_checkpointing": 4,
}
PARALLELISM = {
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "data_parallel_size": 8,
    "sequence_parallel": False,
}
OFFLOAD = {"offload_optimizer": "none", "offload_param": "none"}
ENGINE = {"type": "deepspeed", "zero_stage": 3, **OFFLOAD}
HARDWARE = {"num_gpus": 8, "gpu_memory_gb": 80}


@cache
def presets() -> dict[str, dict[str, Any]]:
    """What a list of presets shows, by name."""
    return {row["name"]: _preset_row(row) for row in catalog.rows("index")}


def _preset_row(row: Mapping[str, Any]) -> dict[str, Any]:
    family = catalog.preset_config(row["config"]).get("model_type", "")
    words = [f"{family}", f"{count(row['num_parameters'])} parameters", row.get("hub_id", "")]
    return {
        "display_name": row["title"],
        "description": ", ".join(filter(None, words)),
        "num_parameters": row["num_parameters"],
        "family": family,
        "hub_id": row.get("hub_id"),
        "spellings": spellings().get(row["name"], []),
    }


def preset(name: str) -> dict[str, Any] | None:
    """A preset as a run file: ZeRO-3 on one node, or a server where its training is not modelled.

    None where no preset has that name.
    """
    row = catalog.find("index", name) if name else None
    if row is None:
        return None
    model = find_model(ModelConfig(name=row["name"]))
    section = {"name": row["name"], **model_fields(model)}
    if not model.arch.trains:
        hardware = {"num_gpus": 1, "gpu_memory_gb": HARDWARE["gpu_memory_gb"]}
        inference = serving_section(model.arch.family)
        return {"model": section, "inference": inference, "hardware": hardware}
    training = {**TRAINING, "seq_len": default_sequence(model.arch.max_seq_len)}
    place = {"parallelism": PARALLELISM, "engine": ENGINE, "hardware": HARDWARE}
    return {"model": section, "training": training, **place}


def model_fields(model: ResolvedModel) -> dict[str, Any]:
    """The reference calculator's fields, as the model's config.json has them; fields that it does
    not have are left out.
    """
    config = model.config or {}
    inner = config.get("text_config")
    sizes = inner if isinstance(inner, Mapping) else config
    fields: dict[str, Any] = {"num_parameters": model.arch.num_parameters}
    for field in FIELDS:
        values = (sizes.get(key) for key in SAME_KEYS[field])
        value = next((one for one in values if type(one) is int), None)
        if value is not None:
            fields[field] = value
    experts = expert_facts(model.arch)
    fields["moe_enabled"] = bool(experts)
    return fields | {field: experts[field] for field in EXPERTS if field in experts}


def fetch_model(body: Any, _options: Mapping[str, str]) -> dict[str, Any]:
    """A model of the hub, or a preset, in the reference calculator's fields."""
    if not isinstance(body, Mapping) or not isinstance(body.get("model_id"), str):
        raise InputError('the body must be an object such as {"model_id": "owner/model"}')
    if body.get("token") not in (None, ""):
        raise InputError("token: the service uses its operator's own; leave it out")
    extra = sorted(set(map(str, body)) - {"model_id", "token"})
    if extra:
        raise InputError([f"{key!r} is not a field of hf/fetch; leave it out" for key in extra])
    name = body["model_id"].strip()
    if not is_hub_name(name) and (not name or catalog.find("index", name) is None):
        raise InputError(
            f"model_id={name!r} must be a name on the hub, such as 'owner/model', or a preset"
        )
    model = find_model(ModelConfig(name=name))
    fields = model_fields(model)
    return {
        "model_id": body["model_id"],
        "config": {"name": name, **fields},
        "missing_fields": [field for field in REQUIRED if field not in fields],
        "found_fields": list(fields),
        "warnings": [*model.warnings, *model.assumed],
    }
