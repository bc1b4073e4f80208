"""The service's addresses: those under /api, and those for operators.

A calculation is a row of `CALCULATIONS`: its path, its task, the lane it runs in and what the
documentation says. Facts, which never change, are encoded once.
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
from .dispatch import answer_request
from .observability import metrics
from .openapi import ANYTHING, PRESETS, SERVER, TITLES, RouteDocument, openapi_document, operation
from .options import WORDS
from .worker_messages import JSON, refusal

Endpoint = Callable[[Request], Awaitable[Response]]
QUICK, SLOW = "quick", "slow"
OURS, REFERENCE, FACTS, WATCH = "calculate", "reference calculator", "catalogue", "operate"


class Route(Struct, frozen=True, kw_only=True):
    """An address whose reply a calculating process makes.

    `body` and `answer` are names of schemas, `query` the query parameters that it takes.
    """

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


CALCULATIONS = (
    Route(
        path="/api/calculate",
        task="calculate",
        lane=QUICK,
        answer="MemoryResult",
        summary="The estimate from the ledger, in milliseconds",
    ),
    Route(
        path="/api/replay",
        task="replay",
        lane=SLOW,
        answer="MemoryResult",
        summary="The same with torch's allocator replayed: reserved, needs, on the device",
    ),
    Route(
        path="/api/validate",
        task="validate",
        lane=QUICK,
        answer="Validation",
        body=ANYTHING,
        summary="Every problem of a run file at once",
    ),
    Route(
        path="/api/explain",
        task="explain",
        lane=QUICK,
        answer="Explanation",
        summary="Each entry of the ledger: formula, numbers put in, when, source",
    ),
    Route(
        path="/api/infer",
        task="infer",
        lane=QUICK,
        query=("contexts", "concurrency"),
        answer=SERVER,
        summary="A server: cache, contexts by sequences, speed, what if, the command",
    ),
    Route(
        path="/api/what-ifs",
        task="what-ifs",
        lane=QUICK,
        answer="ChangesBody",
        summary="One change at a time, and what each saves",
    ),
    Route(
        path="/api/room",
        task="room",
        lane=SLOW,
        answer="HeadroomBody",
        summary="How far the sequence can grow, or must shrink",
    ),
    Route(
        path="/api/look",
        task="look",
        lane=QUICK,
        query=("width", "replay"),
        answer="Look",
        summary="What the page shows: numbers, picture, parts",
    ),
    Route(
        path="/api/report",
        task="report",
        lane=SLOW,
        media="text/html",
        answer="string",
        summary="The report as one HTML file",
    ),
    Route(
        path="/api/picture.svg",
        task="picture",
        lane=QUICK,
        method="GET",
        body=None,
        query=("model.name", "width", "theme"),
        media="image/svg+xml",
        answer="string",
        summary="The picture of a run that the address describes",
    ),
    Route(
        path="/api/import",
        task="import",
        lane=QUICK,
        body="PastedText",
        answer="ImportedRun",
        summary="A pasted run file or config.json, as a run file",
    ),
    Route(
        path="/api/explain-formula",
        task="explain-formula",
        lane=QUICK,
        tag=REFERENCE,
        answer="Formula",
        summary="The formulas of a run with its numbers",
    ),
    Route(
        path="/api/export/{format}",
        task="export",
        lane=QUICK,
        tag=REFERENCE,
        answer="ExportedFile",
        summary="The run as json, yaml or a DeepSpeed configuration",
    ),
    Route(
        path="/api/optimize/batch-size",
        task="optimize/batch-size",
        lane=SLOW,
        tag=REFERENCE,
        answer="LargestBatch",
        summary="The largest micro-batch that fits",
    ),
    Route(
        path="/api/inference/calculate",
        task="inference/calculate",
        lane=QUICK,
        tag=REFERENCE,
        summary="Inference, with the reference calculator's names",
        body=INFERENCE,
        answer="InferenceAnswer",
    ),
    Route(
        path="/api/multinode/calculate",
        task="multinode/calculate",
        lane=QUICK,
        tag=REFERENCE,
        summary="Traffic between nodes; not supported",
        body="object",
    ),
    Route(
        path="/api/hf/fetch",
        task="hf/fetch",
        lane=SLOW,
        tag=REFERENCE,
        body="HubModel",
        answer="HubAnswer",
        summary="A model's numbers from the hub, where the operator allows it",
    ),
)


@cache
def gpus() -> dict[str, Any]:
    """Every GPU of the catalogue."""
    return {"gpus": list(catalog.rows("gpus"))}


# Path -> the function that makes a fact, the schema of its reply, its summary.
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
    """Every address: path, method, endpoint and document."""
    for route in CALCULATIONS:
        yield route.path, route.method, _calculation(route), _route_document(route)
    for path, (_, answer, summary) in FACT.items():
        yield path, "GET", _fact(path), RouteDocument(summary=summary, tag=FACTS, answer=answer)
    about = RouteDocument(
        summary="One preset as a run file", tag=FACTS, words=("name",), answer=RUN, fails=(404,)
    )
    yield "/api/preset/{name}", "GET", _preset, about
    for path, endpoint, summary, answer, media in MONITORING:
        about = RouteDocument(summary=summary, tag=WATCH, media=media, answer=answer, fails=(503,))
        yield path, "GET", endpoint, about


def add_routes(app: FastAPI) -> dict[Endpoint, str]:
    """Add every address to the application; returns the path of each endpoint.

    They are Starlette's plain routes: the calculating processes read the bodies, so FastAPI has
    nothing to parse and each request costs less.
    """
    names: dict[Endpoint, str] = {}
    paths: dict[str, dict[str, Any]] = {}
    for path, method, endpoint, about in operations():
        app.add_route(path, endpoint, methods=[method], include_in_schema=False)
        paths.setdefault(path, {})[method.lower()] = operation(about, f"{method} {path}")
        names[endpoint] = path
    info = {"title": app.title, "version": app.version, "description": app.description}
    openapi = openapi_document(info, paths)
    app.openapi = lambda: openapi  # type: ignore[method-assign]
    return names


def _route_document(route: Route) -> RouteDocument:
    words = tuple(name for name in WORDS if f"{{{name}}}" in route.path)
    missing = (404,) if words else ()
    return RouteDocument(
        summary=route.summary,
        tag=route.tag,
        body=route.body,
        query=route.query,
        words=words,
        media=route.media,
        answer=route.answer,
        fails=(*missing, 408, 413, 414, 422, 501, 503, 504),
    )


def _calculation(route: Route) -> Endpoint:
    settings = "model.name" in route.query  # then any setting of a run file is one

    async def endpoint(request: Request) -> Response:
        query = request.query_params
        unknown = [n for n in query if n not in route.query and not (settings and "." in n)]
        if unknown:
            known = ", ".join(route.query) or "none"
            return _refusal(422, f"{unknown[0][:80]!r} is not an option here; it has: {known}")
        if len(query) < len(query.multi_items()):
            return _refusal(422, "an option is there more than once; leave one of them out")
        lane = SLOW if query.get("replay") == "true" else route.lane
        return await answer_request(request, route.task, lane, **request.path_params)

    return endpoint


@cache
def _encode_fact(path: str) -> bytes:
    """A fact as the JSON that is sent."""
    return msgspec.json.encode(FACT[path][0]())


def gather_facts() -> None:
    """Encode every fact before the first request."""
    for path in FACT:
        _encode_fact(path)


def _fact(path: str) -> Endpoint:
    async def endpoint(_request: Request) -> Response:
        return _json(_encode_fact(path))

    return endpoint


async def _preset(request: Request) -> Response:
    """A preset as a run file, or 404."""
    name = request.path_params["name"]
    run = preset(name)
    if run is None:
        return _refusal(404, f"{name[:80]!r} is not a preset; see /api/presets")
    return _json(msgspec.json.encode(run))


async def _alive(_request: Request) -> Response:
    return _json(b'{"status":"ok"}')


async def _ready(request: Request) -> Response:
    """200 where every lane has a process that is ready, else 503."""
    lanes = request.app.state.lanes.values()
    missing = [lane.name for lane in lanes if not lane.ready]
    if missing:
        return _refusal(503, f"no calculating process is ready in: {', '.join(missing)}")
    return _json(b'{"status":"ready"}')


async def _metrics(_request: Request) -> Response:
    return Response(metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")


MONITORING: Iterable[tuple[str, Endpoint, str, str, str]] = (
    ("/healthz", _alive, "The service runs", "Status", JSON),
    ("/readyz", _ready, "The service can calculate", "Status", JSON),
    ("/metrics", _metrics, "Prometheus metrics", "string", "text/plain"),
)


def _json(body: bytes) -> Response:
    return Response(body, media_type=JSON)


def _refusal(status: int, sentence: str) -> Response:
    return Response(refusal(status, [sentence]).body, status, media_type=JSON)
