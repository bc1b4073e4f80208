"""The service described for other tools: OpenAPI, with schemas from the types themselves."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct

from .. import __version__
from ..advice.serving.answers import Answers
from ..estimates.explain.explain import Explanation
from ..estimates.result import MemoryResult
from ..ledger.schema_version import SCHEMA_VERSION
from ..runfile.keys.schema import RUN, definitions
from ..tools.translation.arguments import tables
from .bodies import ALL
from .options import QUERY, WORDS
from .plan_question import PlanAsked, PlanProgress, PlansDone, PlansReply
from .route_document import PRESETS, RUN_OR_TEXT, TITLES, RouteDocument
from .worker_messages import BINARY, EVENTS, JSON


class LookSlice(Struct, frozen=True):
    """What one kind takes in a column, and its largest entries."""

    kind: str
    bytes: int
    entries: list[tuple[str, int]]


class LookColumn(Struct, frozen=True):
    """One moment of the picture."""

    title: str
    phase: str
    bytes: int
    slices: list[LookSlice]
    first: int
    last: int


class LookZoom(Struct, frozen=True):
    """The part of a step that the picture shows."""

    columns: list[LookColumn]
    peak: int


class LookPlace(Struct, frozen=True):
    """Where the picture's plot is, in pixels; `top_bytes` are at its top, `low_bytes` below."""

    left: float
    top: float
    width: float
    height: float
    num_columns: int
    top_bytes: float
    low_bytes: float


class Look(Struct, frozen=True):
    """What the page shows: the result, the settings that hold, pieces of HTML by name, what lies
    behind the picture.

    - columns: of the picture, first and last part of the step that each shows, -1 where it is none
    - peak: the highest column; zoom: what is drawn, where that is a part; place: and where
    - stretches: how many parts the step has; 0: it is not drawn in its course
    - instants: the titles of the ledger's; titles: of each kind
    """

    result: MemoryResult
    settings: dict[str, Any]
    parts: dict[str, str]
    columns: list[LookColumn]
    peak: int
    zoom: LookZoom | None
    place: LookPlace
    stretches: int
    instants: list[str]
    titles: dict[str, str]


LOOK = (LookSlice, LookColumn, LookZoom, LookPlace, Look)
# Every type that the description names.
TYPES = (
    *(Answers, Explanation, MemoryResult, PlanAsked, PlanProgress, PlansDone, PlansReply),
    *(*LOOK, *ALL),
)


ABOUT = (
    "Estimates how much GPU memory it takes to train or serve a language model, "
    "and says whether it fits."
)
TEMPLATE = "#/components/schemas/{name}"
SERVER, ANYTHING, SKYPILOT = "ServerAnswers", "Anything", "SkyPilotBody"
_TABLES = tables(__file__)
# By the schema of the body, or of the answer where only some bodies have an example.
EXAMPLES = {
    **_TABLES["examples"],
    **dict.fromkeys((ANYTHING, RUN_OR_TEXT), _TABLES["examples"][RUN]),
}
FAILURES = {int(status): words for status, words in _TABLES["failures"].items()}
GUARDED = (421, 429, 431)  # by the guard, on every address


def operation(doc: RouteDocument, name: str) -> dict[str, Any]:
    """An OpenAPI operation; `name` is its method and path."""
    data: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", name.lower()).strip("_"),
        "summary": doc.summary,
        "tags": [doc.tag],
        "parameters": [
            *({"name": name, "in": "path", "required": True, **WORDS[name]} for name in doc.words),
            *({"name": name, "in": "query", **_option(doc, name)} for name in doc.query),
        ],
        "responses": {
            "200": {"description": "done", "content": _content(doc)},
            **{
                str(code): {
                    "description": FAILURES[code],
                    "content": {JSON: {"schema": _schema("ProblemsBody")}},
                }
                for code in sorted({*doc.fails, *GUARDED, *([404] if doc.words else [])})
            },
        },
    }
    if doc.body:
        content: dict[str, Any] = {"schema": _schema(doc.body)}
        example = EXAMPLES.get(doc.answer) or EXAMPLES.get(doc.body)
        if example:
            content["example"] = example
        forms = {JSON: content, **({BINARY: {}} if doc.binary else {})}
        data["requestBody"] = {"required": doc.body != ANYTHING, "content": forms}
    return data


def _option(doc: RouteDocument, name: str) -> dict[str, Any]:
    """A query parameter of an address, with the default that it has there."""
    found = QUERY[name]
    if name not in doc.defaults:
        return found
    return {**found, "schema": {**found["schema"], "default": doc.defaults[name]}}


def _content(doc: RouteDocument) -> dict[str, Any]:
    """What an answer may be, by its media type."""
    content: dict[str, Any] = {doc.media: {"schema": _schema(doc.answer)}}
    if doc.events:
        listed = ", ".join(f"`{name.partition(':')[0]}`" for name in doc.events)
        ends = "each with the JSON of its schema; the last one ends the stream"
        content[EVENTS] = {
            "schema": {"type": "string", "description": f"server-sent events {listed}: {ends}"},
            "x-events": {
                name: _schema(schema)
                for name, _, schema in (one.partition(":") for one in doc.events)
            },
        }
    return content


def _schema(name: str) -> dict[str, Any]:
    return {"type": name} if name.islower() else {"$ref": TEMPLATE.format(name=name)}


@cache
def _components() -> dict[str, Any]:
    _, types = msgspec.json.schema_components(TYPES, ref_template=TEMPLATE)
    from .addresses import CALCULATIONS  # whose rows are documents of here

    for name in {row.answer for row in CALCULATIONS} & types.keys():
        fields = types[name]["properties"]
        if "apiVersion" not in fields:
            fields.setdefault("schema_version", {"const": SCHEMA_VERSION})
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
        RUN_OR_TEXT: {
            "anyOf": [_schema(RUN), _schema("PastedText")],
            "description": "A run file, or a text that means one.",
        },
        SKYPILOT: {
            "anyOf": [_schema("SkyPilotRequest"), {"type": "string"}],
            "description": "A request of SkyPilot, which it sends as a string of JSON.",
        },
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
