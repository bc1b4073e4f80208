"""What a user asks of the planner."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

# What to look for: the fastest set-up on the GPUs given, or the most or least of something.
FASTEST, FEWEST_GPUS, LARGEST_BATCH, LONGEST_CONTEXT, LARGEST_MODEL = (
    "fastest",
    "fewest_gpus",
    "largest_batch",
    "longest_context",
    "largest_model",
)
GOALS = (FASTEST, FEWEST_GPUS, LARGEST_BATCH, LONGEST_CONTEXT, LARGEST_MODEL)


class PlanQuestion(Struct, frozen=True, kw_only=True):
    """A question for the planner.

    - `model`: the `model` section of a run file
    - `hardware`: its `hardware` section
    - `global_batch`: sequences of a step over all GPUs
    - `engines`: those to search; all where empty
    - `fix`: keys of a run file that every set-up has
    - `vary`: further keys, each with the values to try
    - `price`: of a GPU for an hour; `tokens`: of the whole training
    """

    model: dict[str, Any]
    hardware: dict[str, Any]
    seq_len: int | None = None
    global_batch: int | None = None
    engines: tuple[str, ...] = ()
    fix: dict[str, Any] = field(default_factory=dict)
    vary: dict[str, list[Any]] = field(default_factory=dict)
    goal: str = FASTEST
    price: float | None = None
    tokens: int | None = None
    top: int = 10

    @property
    def sequences(self) -> int:
        """Sequences of a step: the global batch, or one for each GPU where it is not given."""
        return self.global_batch or int(self.hardware["num_gpus"])
