"""What an engine is: a framework, as data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from ..ledger.ledger import Ledger
from ..ledger.num import Num
from .run import Run
from .served import ServerMemory


def never(run: Run) -> bool:
    """An engine whose work is all on one CUDA stream, as long as NCCL brings none."""
    return False


class Engine(Struct, frozen=True, kw_only=True):
    """A framework: its options with their defaults, what it refuses, and its ledger.

    `options` maps an option's name to its default at the version that is modelled; an option
    that is not in it is refused. `axes` are the mesh axes it can cut along besides dp.
    `problems` yields one sentence for each thing the framework would refuse, too. `tower` says
    what it holds of a vision tower that text alone never passes; an engine without it has none.
    """

    name: str
    title: str
    options: Mapping[str, Any] = {}
    fixed: tuple[str, ...] = ()  # options of which it has the default value only
    generations: Mapping[str, str] = {}  # the newest version that has a generation, where it ended
    axes: frozenset[str] = frozenset()
    side_streams: Callable[[Run], bool] = never  # whether it makes CUDA streams of its own
    transformers: bool = True  # runs Hugging Face's modelling code, with its own choices
    optimizers: frozenset[str] = frozenset()
    problems: Callable[[Run], Iterator[str]]
    ledger: Callable[[Run], Ledger]
    stage_layers: Callable[[Run], list[int]] | None = None
    parameters: Callable[[Run], Num] | None = None  # elements of this rank's model shard
    tower: str = ""
    serve: Callable[[Run], ServerMemory] | None = None  # a server with a pool for its cache
