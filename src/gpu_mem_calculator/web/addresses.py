"""The addresses whose replies calculating processes make: one row of `tables.toml` each."""

from __future__ import annotations

import msgspec

from ..tools.translation.arguments import tables
from .openapi import RUN_OR_TEXT, RouteDocument

QUICK, SLOW = "quick", "slow"


class Address(RouteDocument, frozen=True, kw_only=True):
    """An address under /api, and what the OpenAPI document says of it.

    - `task`: the function of `worker.TASKS` that makes the reply; the address has its name
    - `lane`: the processes that run it
    - `body`: empty where it is asked with GET
    - `suffix`: what the address has after the task's name
    """

    task: str
    lane: str
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


CALCULATIONS = msgspec.convert(tables(__file__), tuple[Address, ...])
