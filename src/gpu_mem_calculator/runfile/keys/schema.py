"""The run file's JSON Schema, generated from the types that read it."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from ..config import INNER, RunFile
from ..read import SECTIONS, key_types
from ..sections import row_names

DIALECT = "https://json-schema.org/draft/2020-12/schema"
RUN = RunFile.__name__
NULL = {"type": "null"}


def schema() -> dict[str, Any]:
    """The JSON Schema of a run file, for editors."""
    return {"$schema": DIALECT, "$ref": f"#/$defs/{RUN}", "$defs": definitions("#/$defs/{name}")}


def definitions(template: str) -> dict[str, Any]:
    """The schemas of the run file and its sections by name; `template` is the form of references.

    Unknown keys are not allowed. Null means that a key is left out, and is allowed for every key
    except `model`, which is required.
    """
    _, schemas = msgspec.json.schema_components((RunFile,), ref_template=template)
    for one in schemas.values():
        one["additionalProperties"] = False
    kinds: tuple[type[Struct], ...] = (*INNER.values(), *SECTIONS.values())
    for kind in kinds:
        properties = schemas[kind.__name__]["properties"]
        for key, type_ in key_types(kind).items():
            if names := row_names(type_):
                allowed = {"anyOf": [{"enum": sorted(names)}, NULL]}
                properties[key] = {**allowed, "default": properties[key]["default"]}
        _make_nullable(properties)
    sections = schemas[RUN]["properties"]
    model = sections["model"]
    _make_nullable(sections)
    schemas[RUN] |= {"properties": {**sections, "model": model}, "required": ["model"]}
    return schemas


def nullable(one: dict[str, Any]) -> dict[str, Any]:
    """The schema with null allowed as well."""
    if NULL in one.get("anyOf", ()):
        return one
    default = {"default": one["default"]} if "default" in one else {}
    return {"anyOf": [{k: v for k, v in one.items() if k != "default"}, NULL], **default}


def _make_nullable(properties: dict[str, Any]) -> None:
    for key, one in properties.items():
        properties[key] = nullable(one)
