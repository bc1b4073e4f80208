"""The answer to a question: plans, fastest first, what they were chosen from, and their Pareto
front of memory against time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct, field

from ....ledger.shown import Drawn, Shown


class PlanSeconds(Struct, frozen=True, kw_only=True):
    """Seconds of a step with their 80 % interval; `parts` add up to the estimate."""

    estimate: float
    low: float
    high: float
    parts: dict[str, float]


class PlanStage(Struct, frozen=True, kw_only=True):
    """Memory of a rank of one pipeline stage; `layers` is how many it has."""

    stage: int
    layers: int
    allocated_bytes: int


class KnobEffect(Struct, frozen=True, kw_only=True):
    """What one change of a plan costs or saves: differences from the plan, negative is less."""

    change: dict[str, Any]  # keys of a run file with their new values
    needs_bytes: int
    step_seconds: float
    fits_on_gpu: bool
    tokens_per_second: float | None = None  # of servers


class ServingFigures(Struct, frozen=True, kw_only=True):
    """Figures of a plan for serving.

    - `users`: sequences at once on all replicas; `users_per_replica`: on one, the batch of a step
    - `most_users`: the sequences that memory holds on all replicas
    - `replicas`: copies of the model; `servers`: how often the run file is started, each with
      `replicas / servers` copies; `gpus`: of all servers
    - `context`, `prompt_len`, `new_tokens`: tokens of a user's sequence, its prompt, its answer
    - `kv_tokens`: tokens that the KV cache of one replica holds
    - `first_token_seconds`: a prompt alone; a plan's `step_seconds` are those per output token
    - `tokens_per_second_bound`: what no server can exceed, by roofline
    - `cost_per_million_tokens`: of output, None without a price
    """

    users: int
    users_per_replica: int
    most_users: int
    replicas: int
    servers: int
    gpus: int
    context: int
    prompt_len: int
    new_tokens: int
    kv_tokens: int
    first_token_seconds: PlanSeconds
    tokens_per_second_bound: float
    cost_per_million_tokens: float | None = None


class Plan(Shown, Struct, frozen=True, kw_only=True):
    """One set-up, estimated in full.

    - `replayed`: False while the search goes on and only its ledger is known: memory is then the
      sum of the tensors, the least margin and what is outside torch
    - `run`: a run file; `settings`: the keys in which it differs from the other plans
    - `file`: of a candidate, the file that it was read from
    - `open`: what is not modelled and could add to `needs_bytes`, a sentence each
    - `gpu_hours`, `cost`: of all tokens asked for, None without `tokens`, without a price
    - `serving`: of a server; its `step_seconds` are seconds per output token of one user, its
      `tokens_per_second` output tokens of all users
    """

    rank: int
    run: dict[str, Any]
    settings: dict[str, Any]
    needs_bytes: int
    allocated_bytes: int
    margin_bytes: int
    headroom_bytes: int
    fits_on_gpu: bool
    step_seconds: PlanSeconds
    tokens_per_second: float
    mfu: float
    host_bytes_per_node: int = 0
    gpu_hours: float | None = None
    cost: float | None = None
    why: list[str] = field(default_factory=list)
    stages: list[PlanStage] = field(default_factory=list)
    knobs: list[KnobEffect] = field(default_factory=list)
    serving: ServingFigures | None = None
    file: str | None = None
    open: list[str] = field(default_factory=list)
    replayed: bool = True


class SmallestChange(Struct, frozen=True, kw_only=True):
    """Keys of a run file with values that would let a set-up fit, where none does."""

    change: dict[str, Any]
    saves_bytes: int


class SearchedSpace(Struct, frozen=True, kw_only=True):
    """How many set-ups were evaluated, how many fit by their ledger, and how long that took.

    `axes`: each axis with the values that were tried.
    """

    set_ups: int
    feasible: int
    seconds: float
    axes: dict[str, list[Any]] = field(default_factory=dict)


class Plans(Drawn, Struct, frozen=True, kw_only=True):
    """Plans of a question, fastest first; `front` has the indices of those on the Pareto front.

    `limits`: what the search and the seconds leave out, a sentence for each. `version` changes
    where a field is renamed or removed.
    """

    question: dict[str, Any]
    space: SearchedSpace
    plans: list[Plan]
    front: list[int]
    if_nothing_fits: list[SmallestChange] = field(default_factory=list)
    limits: list[str] = field(default_factory=list)
    version: int = 1


SoFar = Callable[[], Plans]  # the plans that are known until now
INTERRUPTED = "the search was interrupted: the list and its front are not complete"


class PlansSoFar(KeyboardInterrupt):
    """Ctrl-C, with the plans that were found before it."""

    def __init__(self, plans: Plans) -> None:
        super().__init__()
        self.plans = plans


def pareto_front(plans: Sequence[Plan]) -> list[int]:
    """Indices of plans, best first, that fit and need less memory than every better one."""
    front: list[int] = []
    for index, plan in enumerate(plans):
        if plan.fits_on_gpu and (not front or plan.needs_bytes < plans[front[-1]].needs_bytes):
            front.append(index)
    return front
