"""The addresses whose replies calculating processes make: one row each."""

from __future__ import annotations

from msgspec import Struct

from ..runfile.keys.schema import RUN
from .openapi import ANYTHING, SERVER, RouteDocument
from .options import WORDS
from .worker_messages import JSON

QUICK, SLOW = "quick", "slow"
FAILS = (403, 408, 413, 414, 422, 503, 504)


class Address(Struct, frozen=True):
    """An address under /api.

    - `task`: the function of `tasks.TASKS` that makes the reply; the address has its name
    - `lane`: the processes that run it
    - `answer` and `body`: names of schemas; without a body it is asked with GET
    - `query`: the query parameters that it takes
    - `suffix`: what the address has after the task's name
    """

    task: str
    lane: str
    answer: str
    summary: str
    body: str | None = RUN
    query: tuple[str, ...] = ()
    media: str = JSON
    suffix: str = ""

    @property
    def path(self) -> str:
        """The address, with the names of its words in braces."""
        return f"/api/{self.task}{self.suffix}"

    @property
    def method(self) -> str:
        """The method that it takes."""
        return "GET" if self.body is None else "POST"

    def document(self) -> RouteDocument:
        """What the OpenAPI document says of it."""
        words = tuple(name for name in WORDS if f"{{{name}}}" in self.suffix)
        return RouteDocument(
            summary=self.summary,
            tag="calculate",
            body=self.body,
            query=self.query,
            words=words,
            media=self.media,
            answer=self.answer,
            fails=(404, *FAILS) if words else FAILS,
        )


CALCULATIONS = (
    Address(
        "calculate",
        SLOW,
        "MemoryResult",
        "The estimate: what it needs, and whether it fits by a replay of torch's allocator",
    ),
    Address("replay", SLOW, "MemoryResult", "The same as calculate"),
    Address("validate", QUICK, "Validation", "Every problem of a run file", ANYTHING),
    Address(
        "explain",
        QUICK,
        "Explanation",
        "Each entry of the ledger: formula, numbers put in, when, source",
    ),
    Address(
        "infer",
        QUICK,
        SERVER,
        "A server: cache, contexts by sequences, speed, what if, the command",
        query=("contexts", "concurrency"),
    ),
    Address(
        "what-ifs", SLOW, "ChangesBody", "One change at a time: what it saves, whether it then fits"
    ),
    Address("room", SLOW, "HeadroomBody", "How far the sequence can grow, or must shrink"),
    Address(
        "look",
        QUICK,
        "Look",
        "What the page shows: numbers, picture, parts",
        query=("width", "replay"),
    ),
    Address("report", SLOW, "string", "The report as one HTML file", media="text/html"),
    Address(
        "picture",
        SLOW,
        "string",
        "The picture of a run that the address describes",
        body=None,
        query=("model.name", "width", "theme"),
        media="image/svg+xml",
        suffix=".svg",
    ),
    Address(
        "plan",
        SLOW,
        "PlansReply",
        "The set-ups that fit, fastest first, with the time of a step and its cost",
        "PlanAsked",
        query=("page",),
    ),
    Address(
        "import",
        QUICK,
        "ImportedRun",
        "A pasted command, run file, tool's file, config.json or model name, as a run file",
        "PastedText",
    ),
    Address(
        "export",
        SLOW,
        "ExportedFile",
        "The run as json, yaml, or the configuration of another tool",
        suffix="/{format}",
    ),
)
