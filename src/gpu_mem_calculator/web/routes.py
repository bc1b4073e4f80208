"""The service's routes: calculations, facts, and what operators ask.

Calculating processes read the bodies. Facts, which never change, are encoded once.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import cache, partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .. import catalog
from ..runfile.keys.fields import form
from ..runfile.keys.schema import RUN, schema
from ..training.engines import engines
from .addresses import CALCULATIONS, SLOW, Address
from .dispatch import answer_request
from .observability import metrics
from .openapi import PRESETS, TITLES, RouteDocument, openapi_document, operation
from .presets import preset, presets
from .worker_messages import JSON, refusal

Endpoint = Callable[[Request], Awaitable[Response]]
FACTS, WATCH = "catalogue", "operate"


@cache
def gpus() -> dict[str, Any]:
    """Every GPU of the catalogue."""
    return {"gpus": list(catalog.rows("gpus"))}


def engine_titles() -> dict[str, str]:
    """Titles of the training engines by name."""
    return {name: engine.title for name, engine in engines().items()}


# Path -> the function that makes a fact, the schema of its reply, its summary.
FACT: dict[str, tuple[Callable[[], Any], str, str]] = {
    "/api/presets": (presets, PRESETS, "The models that have a name"),
    "/api/gpus": (gpus, "Cards", "The cards that have a name"),
    "/api/schema": (schema, "object", "The run file's JSON Schema"),
    "/api/form": (form, "Form", "The run file's keys, their defaults and meanings"),
    "/api/engines": (engine_titles, TITLES, "The training engines"),
}


def operations() -> Iterator[tuple[str, str, Endpoint, RouteDocument]]:
    """Every address: path, method, endpoint and document."""
    for route in CALCULATIONS:
        yield route.path, route.method, _calculation(route), route.document()
    for path, (_, answer, summary) in FACT.items():
        about = RouteDocument(summary=summary, tag=FACTS, answer=answer)
        yield path, "GET", _sends_fact(partial(_encode_fact, path)), about
    about = RouteDocument(
        summary="One preset as a run file", tag=FACTS, words=("name",), answer=RUN, fails=(404,)
    )
    yield "/api/preset/{name}", "GET", _preset, about
    for path, endpoint, summary, answer, media in MONITORING:
        about = RouteDocument(summary=summary, tag=WATCH, media=media, answer=answer, fails=(503,))
        yield path, "GET", endpoint, about


def openapi() -> dict[str, Any]:
    """The OpenAPI document of the service."""
    paths: dict[str, dict[str, Any]] = {}
    for path, method, _, about in operations():
        paths.setdefault(path, {})[method.lower()] = operation(about, f"{method} {path}")
    return openapi_document(paths)


def named_routes() -> tuple[list[Route], dict[Endpoint, str]]:
    """The routes of every address and of the OpenAPI document, and the path of each endpoint."""
    rows = [(path, method, endpoint) for path, method, endpoint, _ in operations()]
    document = EncodedFact(msgspec.json.encode(openapi()))
    described = ("/openapi.json", "GET", _sends_fact(lambda: document))
    routes = [Route(path, run, methods=[method]) for path, method, run in (*rows, described)]
    return routes, {endpoint: path for path, _, endpoint in rows}


def _calculation(route: Address) -> Endpoint:
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


class EncodedFact:
    """A fact as it is sent: JSON, the same gzipped, and a tag by which a browser knows it again."""

    def __init__(self, body: bytes) -> None:
        self.body, self.packed = body, gzip.compress(body, mtime=0)
        self.tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'

    def response(self, request: Request) -> Response:
        """The fact, or 304 where the client has it."""
        headers = {"etag": self.tag, "cache-control": "no-cache", "vary": "accept-encoding"}
        if self.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        packs = "gzip" in request.headers.get("accept-encoding", "")
        if packs:
            headers["content-encoding"] = "gzip"
        return Response(self.packed if packs else self.body, headers=headers, media_type=JSON)


@cache
def _encode_fact(path: str) -> EncodedFact:
    """A fact of the catalogue, encoded once."""
    return EncodedFact(msgspec.json.encode(FACT[path][0]()))


def gather_facts() -> None:
    """Encode every fact before the first request."""
    for path in FACT:
        _encode_fact(path)


def _sends_fact(fact: Callable[[], EncodedFact]) -> Endpoint:
    """An endpoint that sends this fact to everyone."""

    async def endpoint(request: Request) -> Response:
        return fact().response(request)

    return endpoint


async def _healthy(_request: Request) -> Response:
    return _json(b'{"status":"ok"}')


async def _preset(request: Request) -> Response:
    """A preset as a run file, or 404."""
    name = request.path_params["name"]
    run = preset(name)
    if run is None:
        return _refusal(404, f"{name[:80]!r} is not a preset; see /api/presets")
    return _json(msgspec.json.encode(run))


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
    ("/healthz", _healthy, "The service runs", "Status", JSON),
    ("/readyz", _ready, "The service can calculate", "Status", JSON),
    ("/metrics", _metrics, "Prometheus metrics", "string", "text/plain"),
)


def _json(body: bytes) -> Response:
    return Response(body, media_type=JSON)


def _refusal(status: int, sentence: str) -> Response:
    return Response(refusal(status, [sentence]).body, status, media_type=JSON)
