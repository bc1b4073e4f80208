"""What the page asks for beside calculations: facts, which never change.

The presets: what a list of them shows, and each as a run file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import msgspec

from .. import catalog
from ..catalog.model_names import spellings
from ..report.lines import count
from ..runfile.config import ModelConfig
from ..runfile.find_model.model_facts import expert_facts
from ..runfile.find_model.model_source import SAME_KEYS, ResolvedModel, find_model
from ..runfile.keys.fields import form
from ..runfile.keys.schema import schema
from ..runfile.resolve.training_defaults import default_sequence
from ..serving import serving_section
from ..tools.translation.arguments import tables
from ..tools.trl.methods import methods
from ..training.engines import engines
from .route_document import PRESETS, TITLES
from .worker_messages import TaskReply, refusal

FIELDS = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size", "max_seq_len")
EXPERTS = ("num_experts", "top_k", "expert_intermediate_size")
# A preset trains with ZeRO-3 on one node, so that most of them fit.
SECTIONS = tables(__file__)


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
        hardware = {**SECTIONS["hardware"], "num_gpus": 1}
        inference = serving_section(model.arch.family)
        return {"model": section, "inference": inference, "hardware": hardware}
    training = {**SECTIONS["training"], "seq_len": default_sequence(model.arch.max_seq_len)}
    return {"model": section, **SECTIONS, "training": training}


def preset_reply(name: str) -> TaskReply:
    """The reply to who asks for a preset."""
    run = preset(name)
    if run is None:
        return refusal(404, [f"{name[:80]!r} is not a preset; see /api/presets"])
    return TaskReply(200, msgspec.json.encode(run))


def model_fields(model: ResolvedModel) -> dict[str, Any]:
    """The model section's plain numbers, as the model's config.json has them; those that it does
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


@cache
def gpus() -> dict[str, Any]:
    """Every GPU of the catalogue."""
    return {"gpus": list(catalog.rows("gpus"))}


def engine_titles() -> dict[str, str]:
    """Titles of the training engines by name."""
    return {name: engine.title for name, engine in engines().items()}


def whole_form() -> dict[str, Any]:
    """The form, with the methods of training."""
    return {**form(), "methods": methods()}


# Path -> the function that makes a fact, the schema of its reply, its summary.
FACT: dict[str, tuple[Callable[[], Any], str, str]] = {
    "/api/presets": (presets, PRESETS, "The models that have a name"),
    "/api/gpus": (gpus, "Cards", "The cards that have a name"),
    "/api/schema": (schema, "object", "The run file's JSON Schema"),
    "/api/form": (whole_form, "Form", "The run file's keys, their defaults and meanings"),
    "/api/engines": (engine_titles, TITLES, "The training engines"),
}
