"""The schemas of what clients send: the run file, with the reference calculator's fields in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..core.schema import RUN, definitions, nullable
from .compat_inference import COMMON, OWN, ReferenceField

Schema = dict[str, Any]
INFERENCE = "InferenceRun"
REFERENCE_INFERENCE = "ReferenceInference"
COUNT = {"type": "integer", "minimum": 1, "maximum": 10**9}
# Its fields that are read as others of ours, or dropped where they say nothing new.
ENGINE: Schema = {
    "use_distributed_optimizer": {"type": "boolean", "description": "distributed_optimizer"},
    "num_micro_batches": COUNT | {"description": "1, or training.gradient_accumulation_steps"},
}
HARDWARE: Schema = {
    "total_gpu_memory_gb": {"type": "number", "description": "num_gpus times gpu_memory_gb"},
}
# Its fields of a server that become tensor_parallel_size, and the other name of its engine.
SHARDS: Schema = {"sharded": {"type": "boolean"}, "num_shard": COUNT}
ENGINE_TYPE: Schema = {"type": "string", "minLength": 1, "description": "engine"}


def body_schemas(template: str) -> dict[str, Schema]:
    """Every schema of a body, by name."""
    made = definitions(template)
    for name, more in (("EngineConfig", ENGINE), ("GPUConfig", HARDWARE)):
        made[name]["properties"] |= {key: nullable(one) for key, one in more.items()}
    own = made["InferenceConfig"]
    fields = dict(_fields(own["properties"]))
    made[REFERENCE_INFERENCE] = {
        **own, "title": REFERENCE_INFERENCE,
        "description": "Inference with the reference calculator's keys, or with a run file's own.",
        "properties": {**fields, **own["properties"], "engine_type": nullable(ENGINE_TYPE)},
    }  # fmt: skip
    sections = made[RUN]["properties"]
    served = {"$ref": template.format(name=REFERENCE_INFERENCE)}
    made[INFERENCE] = {
        **made[RUN], "title": INFERENCE, "required": ["model", "inference"],
        "description": "A run file of a server, or the reference calculator's.",
        "properties": {**sections, "inference": served},
    }  # fmt: skip
    return made


def _fields(own: Schema) -> Iterator[tuple[str, Schema]]:
    """Its fields of every engine: as our key has them, by their words, or what says nothing."""
    for table in (COMMON, *OWN.values()):
        for key, field in table.items():
            yield key, nullable(_field(field, own))


def _field(field: ReferenceField, own: Schema) -> Schema:
    if field.words is not None:
        return {"enum": [field.nothing, *field.words]}
    if field.key:
        ours: Schema = {**SHARDS, **own}[field.key]
        return ours
    return {"enum": [one for one in (field.nothing, field.untouched) if one is not None]}
