"""What the OpenAPI document says of one address."""

from __future__ import annotations

from msgspec import Struct

from .worker_messages import JSON

PRESETS, TITLES, RUN_OR_TEXT = "Presets", "Titles", "RunOrText"  # schemas that routes name


class RouteDocument(Struct, frozen=True, kw_only=True):
    """What the OpenAPI document says of one address.

    - `answer` and `body`: names of schemas; there may be no body; `binary`: it may be a file, too
    - `events`: `name:schema` of the events that it sends to a client that accepts them
    - `query`: the query parameters that it takes, `defaults` those that are others than where an
      option is described; `words`: those of its path
    - `fails`: the statuses of its refusals, besides those of every address
    """

    summary: str
    tag: str
    body: str = ""
    binary: bool = False
    events: tuple[str, ...] = ()
    query: tuple[str, ...] = ()
    defaults: dict[str, str] = {}
    words: tuple[str, ...] = ()
    media: str = JSON
    answer: str = "object"
    fails: tuple[int, ...] = ()
