"""The service described for other tools: OpenAPI, with schemas from the types themselves."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct

from .. import __version__
from ..runfile.keys.schema import RUN, definitions
from .options import QUERY, WORDS
from .response_types import TYPES
from .worker_messages import JSON

ABOUT = (
    "Estimates how much GPU memory it takes to train or serve a language model, "
    "and says whether it fits."
)
TEMPLATE = "#/components/schemas/{name}"
SERVER, PRESETS, TITLES, ANYTHING = "ServerAnswers", "Presets", "Titles", "Anything"
EXAMPLE = {
    "model": {"name": "llama2-7b"},
    "training": {"batch_size": 1, "seq_len": 4096},
    "engine": {"type": "deepspeed", "zero_stage": 2},
    "hardware": {"gpu": "a100-80gb-sxm", "num_gpus": 8},
}
SERVED = {"model": {"name": "llama2-7b"}, "hardware": {"gpu": "a100-80gb-sxm"}}
# By the schema of the body, or of the answer where only some bodies have an example.
EXAMPLES = {
    SERVER: {**SERVED, "inference": {"engine": "vllm"}},
    RUN: EXAMPLE,
    ANYTHING: EXAMPLE,
    "PlanAsked": {
        "model": "llama3.1-8b",
        "gpus": 8,
        "gpu": "h100-80gb-sxm",
        "seq_len": 8192,
        "global_batch": 128,
    },
    "PastedText": {"text": "model_type: llama"},
}
FAILURES = {
    403: "sent by a page of another site",
    404: "not found",
    408: "the body took too long to arrive",
    413: "the body is too large",
    414: "the address is too long",
    421: "the request names a host that is not this service's",
    422: "what is wrong, one sentence each",
    429: "too many requests of one client at the same time",
    431: "the headers are too large or too many",
    503: "busy: try again after the seconds of Retry-After",
    504: "the run takes longer than the time limit",
}
GUARDED = (421, 429, 431)  # by the guard, on every address


class RouteDocument(Struct, frozen=True, kw_only=True):
    """What the OpenAPI document says of one address."""

    summary: str
    tag: str
    body: str | None = None
    query: tuple[str, ...] = ()
    words: tuple[str, ...] = ()  # of the path
    media: str = JSON
    answer: str = "object"
    fails: tuple[int, ...] = ()


def operation(doc: RouteDocument, name: str) -> dict[str, Any]:
    """An OpenAPI operation; `name` is its method and path."""
    data: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", name.lower()).strip("_"),
        "summary": doc.summary,
        "tags": [doc.tag],
        "parameters": [
            *({"name": name, "in": "path", "required": True, **WORDS[name]} for name in doc.words),
            *({"name": name, "in": "query", **QUERY[name]} for name in doc.query),
        ],
        "responses": {
            "200": {"description": "done", "content": {doc.media: {"schema": _schema(doc.answer)}}},
            **{
                str(code): {
                    "description": FAILURES[code],
                    "content": {JSON: {"schema": _schema("ProblemsBody")}},
                }
                for code in sorted({*doc.fails, *GUARDED})
            },
        },
    }
    if doc.body is not None:
        content: dict[str, Any] = {"schema": _schema(doc.body)}
        example = EXAMPLES.get(doc.answer) or EXAMPLES.get(doc.body)
        if example:
            content["example"] = example
        data["requestBody"] = {"required": doc.body != ANYTHING, "content": {JSON: content}}
    return data


def _schema(name: str) -> dict[str, Any]:
    return {"type": name} if name.islower() else {"$ref": TEMPLATE.format(name=name)}


@cache
def _components() -> dict[str, Any]:
    _, types = msgspec.json.schema_components(TYPES, ref_template=TEMPLATE)
    texts = {"type": "object", "additionalProperties": {"type": "string"}}
    return {
        **types,
        **definitions(TEMPLATE),
        SERVER: {
            "allOf": [_schema("MemoryResult"), _schema("Answers")],
            "description": "A server's result, and beside it what was asked of it.",
        },
        PRESETS: {
            "type": "object",
            "additionalProperties": _schema("Preset"),
            "description": "Every preset by its name.",
        },
        TITLES: {**texts, "description": "Titles by name."},
        ANYTHING: {
            "anyOf": [_schema(RUN), {}],
            "description": "A run file; whatever else it is, the answer says so.",
        },
    }


def openapi_document(paths: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The OpenAPI document of every address."""
    info = {"title": "gpu-mem-calculator", "version": __version__, "description": ABOUT}
    head = {"openapi": "3.1.0", "info": info, "paths": paths}
    return {**head, "components": {"schemas": _components()}}
