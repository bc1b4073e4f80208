"""The run file's JSON Schema, made from the types that read it."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from .models import LoraConfig, RunFile
from .runfile import SECTIONS

DIALECT = "https://json-schema.org/draft/2020-12/schema"
RUN = RunFile.__name__
NULL = {"type": "null"}


def schema() -> dict[str, Any]:
    """The whole of it, for editors."""
    return {"$schema": DIALECT, "$ref": f"#/$defs/{RUN}", "$defs": definitions("#/$defs/{name}")}


def definitions(template: str) -> dict[str, Any]:
    """The run file and its sections by name; a template says where they refer to each other.

    No key is unknown. A null is a key left out, in every place but a model, which must be there.
    """
    _, made = msgspec.json.schema_components((RunFile,), ref_template=template)
    for one in made.values():
        one["additionalProperties"] = False
    kinds: tuple[type[Struct], ...] = (LoraConfig, *SECTIONS.values())
    for kind in kinds:
        _let_null(made[kind.__name__]["properties"])
    sections = made[RUN]["properties"]
    model = sections["model"]
    _let_null(sections)
    made[RUN] |= {"properties": {**sections, "model": model}, "required": ["model"]}
    return made


def nullable(one: dict[str, Any]) -> dict[str, Any]:
    """A schema that allows null, too."""
    if NULL in one.get("anyOf", ()):
        return one
    default = {"default": one["default"]} if "default" in one else {}
    return {"anyOf": [{k: v for k, v in one.items() if k != "default"}, NULL], **default}


def _let_null(properties: dict[str, Any]) -> None:
    for key, one in properties.items():
        properties[key] = nullable(one)
