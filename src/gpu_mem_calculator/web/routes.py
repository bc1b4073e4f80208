"""The service's addresses under /api, and those that operators watch.

What has to be calculated is a row of a table: its address, its task, the lane it runs in, what it
says in the documentation. What never changes is made once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import cache
from typing import Any

import msgspec
from fastapi import FastAPI
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from .. import catalog
from ..core.fields import form
from ..core.schema import RUN, schema
from .compat import dtypes, engines, optimizers
from .compat_models import preset, presets
from .compat_schema import INFERENCE
from .dispatch import asked
from .observability import metrics
from .openapi import ANYTHING, PRESETS, SERVER, TITLES, RouteDocument, document, whole
from .options import WORDS
from .worker_messages import JSON, refusal

Endpoint = Callable[[Request], Awaitable[Response]]
QUICK, SLOW = "quick", "slow"
OURS, REFERENCE, FACTS, WATCH = "calculate", "reference calculator", "catalogue", "operate"


class Route(Struct, frozen=True, kw_only=True):
    """An address whose answer is calculated."""

    path: str
    task: str
    lane: str
    summary: str
    tag: str = OURS
    body: str | None = RUN
    query: tuple[str, ...] = ()
    media: str = JSON
    answer: str = "object"
    method: str = "POST"


CALCULATED = (
    Route(path="/api/calculate", task="calculate", lane=QUICK, answer="MemoryResult",
          summary="The estimate from the ledger, in milliseconds"),
    Route(path="/api/replay", task="replay", lane=SLOW, answer="MemoryResult",
          summary="The same with torch's allocator replayed: reserved, needs, on the device"),
    Route(path="/api/validate", task="validate", lane=QUICK, answer="Validation",
          body=ANYTHING, summary="Every problem of a run file at once"),
    Route(path="/api/explain", task="explain", lane=QUICK, answer="Explanation",
          summary="Each entry of the ledger: formula, numbers put in, when, source"),
    Route(path="/api/infer", task="infer", lane=QUICK, query=("contexts", "concurrency"),
          answer=SERVER,
          summary="A server: cache, contexts by sequences, speed, what if, the command"),
    Route(path="/api/what-ifs", task="what-ifs", lane=QUICK, answer="Changes",
          summary="One change at a time, and what each saves"),
    Route(path="/api/room", task="room", lane=SLOW, answer="Room",
          summary="How far the sequence can grow, or must shrink"),
    Route(path="/api/look", task="look", lane=QUICK, query=("width", "replay"), answer="Look",
          summary="What the page shows: numbers, picture, parts"),
    Route(path="/api/report", task="report", lane=SLOW, media="text/html", answer="string",
          summary="The report as one HTML file"),
    Route(path="/api/picture.svg", task="picture", lane=QUICK, method="GET", body=None,
          query=("model.name", "width", "theme"), media="image/svg+xml", answer="string",
          summary="The picture of a run that the address describes"),
    Route(path="/api/import", task="import", lane=QUICK, body="Pasted", answer="Imported",
          summary="A pasted run file or config.json, as a run file"),
    Route(path="/api/explain-formula", task="explain-formula", lane=QUICK, tag=REFERENCE,
          answer="Formula",
          summary="The formulas of a run with its numbers"),
    Route(path="/api/export/{format}", task="export", lane=QUICK, tag=REFERENCE,
          answer="Exported",
          summary="The run as json, yaml or a DeepSpeed configuration"),
    Route(path="/api/optimize/batch-size", task="optimize/batch-size", lane=SLOW, tag=REFERENCE,
          answer="LargestBatch",
          summary="The largest micro-batch that fits"),
    Route(path="/api/inference/calculate", task="inference/calculate", lane=QUICK, tag=REFERENCE,
          summary="Inference, with the reference calculator's names", body=INFERENCE,
          answer="InferenceAnswer"),
    Route(path="/api/multinode/calculate", task="multinode/calculate", lane=QUICK, tag=REFERENCE,
          summary="Traffic between nodes; not made yet", body="object"),
    Route(path="/api/hf/fetch", task="hf/fetch", lane=SLOW, tag=REFERENCE, body="HubModel",
          answer="HubAnswer",
          summary="A model's numbers from the hub, where the operator allows it"),
)  # fmt: skip


@cache
def gpus() -> dict[str, Any]:
    """Every card, as the catalogue has it."""
    return {"gpus": list(catalog.rows("gpus"))}


# What never changes while the service runs, and its shape.
FACT: dict[str, tuple[Callable[[], Any], str, str]] = {
    "/api/presets": (presets, PRESETS, "The models that have a name"),
    "/api/gpus": (gpus, "Cards", "The cards that have a name"),
    "/api/schema": (schema, "object", "The run file's JSON Schema"),
    "/api/form": (form, "Form", "The run file's keys, their defaults and meanings"),
    "/api/engines": (engines, TITLES, "The training engines"),
    "/api/optimizers": (optimizers, TITLES, "The optimizers"),
    "/api/dtypes": (dtypes, TITLES, "The number formats of training"),
}


def operations() -> Iterator[tuple[str, str, Endpoint, RouteDocument]]:
    """Every address: its path and method, who answers, what the documentation says."""
    for route in CALCULATED:
        yield route.path, route.method, _calculated(route), _described(route)
    for path, (_, answer, summary) in FACT.items():
        yield path, "GET", _fact(path), RouteDocument(summary=summary, tag=FACTS, answer=answer)
    one = RouteDocument(summary="One preset as a run file", tag=FACTS, words=("name",), answer=RUN,
                   fails=(404,))  # fmt: skip
    yield "/api/preset/{name}", "GET", _preset, one
    for path, endpoint, summary, answer, media in WATCHED:
        watched = RouteDocument(
            summary=summary, tag=WATCH, media=media, answer=answer, fails=(503,)
        )
        yield path, "GET", endpoint, watched


def add_routes(app: FastAPI) -> dict[Endpoint, str]:
    """Add every address, and give the path of each endpoint.

    Plain routes: bodies are read by the calculating processes, so there is nothing that FastAPI
    would have to look at, and each request costs less.
    """
    names: dict[Endpoint, str] = {}
    described: dict[str, dict[str, Any]] = {}
    for path, method, endpoint, said in operations():
        app.add_route(path, endpoint, methods=[method], include_in_schema=False)
        described.setdefault(path, {})[method.lower()] = document(said, f"{method} {path}")
        names[endpoint] = path
    info = {"title": app.title, "version": app.version, "description": app.description}
    made = whole(info, described)
    app.openapi = lambda: made  # type: ignore[method-assign]
    return names


def _described(route: Route) -> RouteDocument:
    words = tuple(name for name in WORDS if f"{{{name}}}" in route.path)
    missing = (404,) if words else ()
    return RouteDocument(
        summary=route.summary, tag=route.tag, body=route.body, query=route.query, words=words,
        media=route.media, answer=route.answer,
        fails=(*missing, 408, 413, 414, 422, 501, 503, 504),
    )  # fmt: skip


def _calculated(route: Route) -> Endpoint:
    settings = "model.name" in route.query  # then any other of a run file, too

    async def endpoint(request: Request) -> Response:
        given = request.query_params
        strange = [n for n in given if n not in route.query and not (settings and "." in n)]
        if strange:
            known = ", ".join(route.query) or "none"
            return _refused(422, f"{strange[0][:80]!r} is not an option here; it has: {known}")
        if len(given) < len(given.multi_items()):
            return _refused(422, "an option is there more than once; leave one of them out")
        lane = SLOW if given.get("replay") == "true" else route.lane
        return await asked(request, route.task, lane, **request.path_params)

    return endpoint


@cache
def _encoded(path: str) -> bytes:
    """A fact as it is sent."""
    return msgspec.json.encode(FACT[path][0]())


def gather_facts() -> None:
    """Make every fact before somebody asks."""
    for path in FACT:
        _encoded(path)


def _fact(path: str) -> Endpoint:
    async def endpoint(_request: Request) -> Response:
        return _json(_encoded(path))

    return endpoint


async def _preset(request: Request) -> Response:
    """A preset as a run file, or that there is none of that name."""
    name = request.path_params["name"]
    found = preset(name)
    if found is None:
        return _refused(404, f"{name[:80]!r} is not a preset; see /api/presets")
    return _json(msgspec.json.encode(found))


async def _alive(_request: Request) -> Response:
    return _json(b'{"status":"ok"}')


async def _ready(request: Request) -> Response:
    """Whether every lane has a process that can be asked."""
    lanes = request.app.state.lanes.values()
    waits = [lane.name for lane in lanes if not lane.ready]
    if waits:
        return _refused(503, f"no calculating process is ready in: {', '.join(waits)}")
    return _json(b'{"status":"ready"}')


async def _metrics(_request: Request) -> Response:
    return Response(metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")


WATCHED: Iterable[tuple[str, Endpoint, str, str, str]] = (
    ("/healthz", _alive, "The service runs", "Status", JSON),
    ("/readyz", _ready, "The service can calculate", "Status", JSON),
    ("/metrics", _metrics, "Prometheus metrics", "string", "text/plain"),
)


def _json(body: bytes) -> Response:
    return Response(body, media_type=JSON)


def _refused(status: int, sentence: str) -> Response:
    return Response(refusal(status, [sentence]).body, status, media_type=JSON)
