"""The service described for other tools: OpenAPI, with schemas from the types themselves."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from msgspec import Struct

from ..core.explain import Explanation
from ..core.models import MemoryResult, RunFile
from .frames import JSON

RUN = "RunFile"
TEMPLATE = "#/components/schemas/{name}"
EXAMPLE = {
    "model": {"name": "llama2-7b"},
    "training": {"batch_size": 1, "seq_len": 4096},
    "engine": {"type": "deepspeed", "zero_stage": 2},
    "hardware": {"gpu": "a100-80gb-sxm", "num_gpus": 8},
}
# What an address may say behind its question mark; None: any setting, `section.key=value`.
QUERY: dict[str, dict[str, Any]] = {
    "contexts": {"schema": {"type": "string", "pattern": r"^\d{1,9}(,\d{1,9}){0,63}$"},
                 "description": "rows of the table, such as 4096,32768", "example": "4096,32768"},
    "concurrency": {"schema": {"type": "string", "pattern": r"^\d{1,9}(,\d{1,9}){0,63}$"},
                    "description": "its columns, such as 1,16,64", "example": "1,16,64"},
    "width": {"schema": {"type": "integer", "minimum": 320, "maximum": 1600, "default": 1000},
              "description": "of the picture, in pixels"},
    "replay": {"schema": {"type": "string", "enum": ["false", "true"], "default": "false"},
               "description": "whether torch's allocator is replayed, which takes a second"},
    "theme": {"schema": {"type": "string", "enum": ["light", "dark"], "default": "light"},
              "description": "the picture's colours"},
    "model.name": {"schema": {"type": "string"}, "example": "llama2-7b",
                   "description": "a setting; every `section.key` of a run file may be one"},
}  # fmt: skip
FAILS = {
    404: "no such thing",
    408: "the body took too long to arrive",
    413: "the body is too large",
    414: "the address is too long",
    422: "what is wrong, one sentence each",
    501: "not made yet",
    503: "busy: come back in a second",
    504: "over the time limit",
}


class Validation(Struct, frozen=True):
    """Whether a run file is right, and what to know of it."""

    valid: bool
    errors: list[str]
    warnings: list[str]
    assumed: list[str]


class Changed(Struct, frozen=True, kw_only=True):
    """One change, what it saves on each GPU, and whether the run then fits."""

    title: str
    settings: list[str]
    saves_bytes: int
    total_bytes: int
    fits: bool
    cost: str
    kv_tokens: int | None = None
    max_concurrency: float | None = None


class Changes(Struct, frozen=True):
    """Changes worth trying."""

    changes: list[Changed]


class Problems(Struct, frozen=True):
    """What is wrong, all of it together and one sentence each."""

    detail: str
    problems: list[str]


class Pasted(Struct, frozen=True):
    """A text that may be a run file or a config.json."""

    text: str


class Document(Struct, frozen=True, kw_only=True):
    """What the documentation says of an address."""

    summary: str
    tag: str
    body: str | None = None
    query: tuple[str, ...] = ()
    words: tuple[str, ...] = ()  # of the path
    media: str = JSON
    answer: str = "object"
    fails: tuple[int, ...] = ()


def document(of: Document) -> dict[str, Any]:
    """It as an OpenAPI operation."""
    made: dict[str, Any] = {
        "summary": of.summary,
        "tags": [of.tag],
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
              for name in of.words),
            *({"name": name, "in": "query", **QUERY[name]} for name in of.query),
        ],
        "responses": {
            "200": {"description": "done", "content": {of.media: {"schema": _schema(of.answer)}}},
            **{str(code): {"description": FAILS[code],
                           "content": {JSON: {"schema": _schema("Problems")}}}
               for code in of.fails},
        },
    }  # fmt: skip
    if of.body is not None:
        content: dict[str, Any] = {"schema": _schema(of.body)}
        if of.body == RUN:
            content["example"] = EXAMPLE
        made["requestBody"] = {"required": True, "content": {JSON: content}}
    return made


def _schema(name: str) -> dict[str, Any]:
    return {"type": name} if name.islower() else {"$ref": TEMPLATE.format(name=name)}


@cache
def _components() -> dict[str, Any]:
    types = (RunFile, MemoryResult, Explanation, Validation, Changes, Problems, Pasted)
    _, made = msgspec.json.schema_components(types, ref_template=TEMPLATE)
    for one in made.values():
        if one["title"].endswith("Config") or one["title"] == RUN:
            one["additionalProperties"] = False
    return made


def describe(app: FastAPI) -> dict[str, Any]:
    """The whole document, made once."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, description=app.description,
                           routes=app.routes)  # fmt: skip
        made["components"] = {"schemas": _components()}
        for operations in made["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None) if _plain(operation) else None
        app.openapi_schema = made
    return app.openapi_schema


def _plain(operation: dict[str, Any]) -> bool:
    """FastAPI's own 422, which nothing here answers."""
    said = operation["responses"].get("422", {})
    return "HTTPValidationError" in str(said)
