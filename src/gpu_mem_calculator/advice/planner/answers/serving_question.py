"""What a user asks of the planner about a server."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from .question import FASTEST


class ServingQuestion(Struct, frozen=True, kw_only=True):
    """A question about serving.

    - `model`, `hardware`: sections of a run file
    - `context`: tokens of a user's sequence, prompt and answer; `new_tokens`: those of the answer
    - `users`: sequences at once on all GPUs; None: as many as fit and meet the targets
    - `latency`: most seconds per output token; `first_token`: most seconds to the first token
    - `throughput`: least output tokens per second of all GPUs
    - `engines`: those to search; all where empty
    - `fix`: keys of a run file that every set-up has
    - `vary`: further keys, each with the values to try
    - `price`: of a GPU for an hour; `tokens`: output tokens in all
    """

    model: dict[str, Any]
    hardware: dict[str, Any]
    context: int | None = None
    new_tokens: int | None = None
    users: int | None = None
    latency: float | None = None
    first_token: float | None = None
    throughput: float | None = None
    engines: tuple[str, ...] = ()
    fix: dict[str, Any] = field(default_factory=dict)
    vary: dict[str, list[Any]] = field(default_factory=dict)
    goal: str = FASTEST
    price: float | None = None
    tokens: int | None = None
    top: int = 10
