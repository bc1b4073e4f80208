"""What is true of a training engine beside its memory: the `ROW` of its folder's `row.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from .engine import unchanged
from .run import Precision, Run

# Whose code runs the layers: Hugging Face's, megatron-core's, Megatron-LM's before that.
TRANSFORMERS, MEGATRON_CORE, MEGATRON_2 = "transformers' layers", "megatron-core's", "Megatron 2's"
# What data-parallel ranks do: each has a replica; they shard units, by ZeRO, or optimizer states.
REPLICATE, SHARD_UNITS, ZERO, SHARD_STATES = "replicate", "shard units", "ZeRO", "shard states"


class EngineRow(Struct, frozen=True, kw_only=True):
    """A training engine's row.

    - `title_of`: its title with keys of its section, and a short one for tables
    - `margin`: of the memory that a run needs (estimates/margin.py)
    - `job`: the module of `jobs` whose `train` runs it; `no_job`: why none does
    - `builds_models`: it makes the model itself, so that a user's function cannot
    - `recipe`: what it does in place of a recipe's value; None: it does not have the key
    - `layers`: whose code runs them; `ranks`: what data-parallel ranks do
    - `precision`: bits of the weights that layers read, and of activations; `as_computed`: a run as
      its layers see it
    - `equal_stages`: stages of a pipeline share the layers equally, with the ends where they count
    - `array_sizes`: its rules hold for arrays of every size
    - `apart`: mesh axes of whose sizes its ledger takes one at a time
    - `plan_limit`: a sentence on what plans with it leave out
    - `runtimes`: the kinds of cards that it has kernels for (run/cuda/runtimes.py)
    - `interval`: the class of its measured steps (timing/training/step.py)
    """

    title_of: Callable[[Mapping[str, Any]], tuple[str, str]]
    margin: float
    job: str = ""
    no_job: str = ""
    builds_models: bool = False
    recipe: Mapping[str, Any] = {}
    layers: str
    ranks: str
    precision: Callable[[Run], Precision]
    as_computed: Callable[[Run], Run] = unchanged
    equal_stages: bool = False
    array_sizes: bool = False
    apart: frozenset[str] = frozenset()
    plan_limit: str = ""
    runtimes: tuple[str, ...]
    interval: str

    @property
    def megatron(self) -> bool:
        """Whether Megatron's layers run, of any generation."""
        return self.layers != TRANSFORMERS

    @property
    def zero_hooks(self) -> bool:
        """Whether ZeRO works by hooks of transformers' modules."""
        return self.ranks == ZERO and not self.megatron
