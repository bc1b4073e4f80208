"""The JSON schemas of bodies: the run file, with the reference calculator's fields added."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..runfile.keys.schema import RUN, definitions, nullable
from .compat_fields import COMMON_FIELDS, ENGINE_FIELDS, ReferenceField

Schema = dict[str, Any]
INFERENCE = "InferenceRun"
REFERENCE_INFERENCE = "ReferenceInference"
COUNT = {"type": "integer", "minimum": 1, "maximum": 10**9}
# Its fields that are read as others of ours, or dropped where they repeat another field.
ENGINE: Schema = {
    "use_distributed_optimizer": {"type": "boolean", "description": "distributed_optimizer"},
    "num_micro_batches": COUNT | {"description": "1, or training.gradient_accumulation_steps"},
}
# Its fields of a server that become tensor_parallel_size, and its name for `engine`.
SHARDS: Schema = {"sharded": {"type": "boolean"}, "num_shard": COUNT}
ENGINE_TYPE: Schema = {"type": "string", "minLength": 1, "description": "engine"}


def body_schemas(template: str) -> dict[str, Schema]:
    """The schemas of bodies by name; `template` is that of a reference."""
    schemas = definitions(template)
    schemas["EngineConfig"]["properties"] |= {key: nullable(one) for key, one in ENGINE.items()}
    section = schemas["InferenceConfig"]
    fields = dict(_fields(section["properties"]))
    schemas[REFERENCE_INFERENCE] = {
        **section,
        "title": REFERENCE_INFERENCE,
        "description": "Inference with the reference calculator's keys, or with a run file's own.",
        "properties": {**fields, **section["properties"], "engine_type": nullable(ENGINE_TYPE)},
    }
    sections = schemas[RUN]["properties"]
    served = {"$ref": template.format(name=REFERENCE_INFERENCE)}
    schemas[INFERENCE] = {
        **schemas[RUN],
        "title": INFERENCE,
        "required": ["model", "inference"],
        "description": "A run file of a server, or the reference calculator's.",
        "properties": {**sections, "inference": served},
    }
    return schemas


def _fields(keys: Schema) -> Iterator[tuple[str, Schema]]:
    """Its fields of every engine: our key's schema, its words, or values that ask for nothing."""
    for table in (COMMON_FIELDS, *ENGINE_FIELDS.values()):
        for key, field in table.items():
            yield key, nullable(_field(field, keys))


def _field(field: ReferenceField, keys: Schema) -> Schema:
    if field.words is not None:
        return {"enum": [field.nothing, *field.words]}
    if field.key:
        ours: Schema = {**SHARDS, **keys}[field.key]
        return ours
    return {"enum": [one for one in (field.nothing, field.untouched) if one is not None]}
