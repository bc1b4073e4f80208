"""The addresses whose replies calculating processes make: one row of `tables.toml` each."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..tools.translation.arguments import tables
from .route_document import RUN_OR_TEXT, RouteDocument

QUICK, SLOW, PLAN = "quick", "slow", "plan"


class Address(RouteDocument, frozen=True, kw_only=True):
    """An address under /api, and what the OpenAPI document says of it.

    - `task`: the function of `worker.TASKS` that makes the reply; the address has its name
    - `lane`: the processes that run it
    - `later`: it can wait, so those that cannot come first
    - `body`: empty where it is asked with GET
    - `suffix`: what the address has after the task's name
    """

    task: str
    lane: str
    later: bool = False
    suffix: str = ""
    tag: str = "calculate"
    body: str = RUN_OR_TEXT
    fails: tuple[int, ...] = (403, 408, 413, 414, 422, 503, 504)

    @property
    def path(self) -> str:
        """The address, with the names of its words in braces."""
        return f"/api/{self.task}{self.suffix}"

    @property
    def method(self) -> str:
        """The method that it takes."""
        return "POST" if self.body else "GET"

    def refusal(self, names: Sequence[str]) -> str:
        """Why these names of query parameters are refused, as a sentence; empty where none is."""
        settings = "model.name" in self.query  # then any setting of a run file is one
        unknown = [n for n in names if n not in self.query and not (settings and "." in n)]
        if unknown:
            known = ", ".join(self.query) or "none"
            return f"{unknown[0][:80]!r} is not an option here; it has: {known}"
        if len(set(names)) < len(names):
            return "an option is there more than once; leave one of them out"
        return ""


CALCULATIONS = msgspec.convert(tables(__file__), tuple[Address, ...])
