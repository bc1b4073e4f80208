"""What a framework is to the estimate, as data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from ..ledger.ledger import Ledger
    from ..ledger.num import Num
    from .run import Run
    from .served import ServerMemory


def unchanged(run: Run) -> Run:
    """For an engine whose options imply nothing for other fields of a run."""
    return run


def no_side_streams(run: Run) -> bool:
    """For an engine whose work is all on one CUDA stream, apart from NCCL's."""
    return False


class HostLibraries(Struct, frozen=True):
    """Peak resident memory of a process, less that before the engine started; the runs' spread."""

    bytes: int
    runs: str


class Engine(Struct, frozen=True, kw_only=True):
    """A framework: its options with their defaults, what it refuses, and its ledger.

    - `alone_title`: its title on one GPU, where that is another.
    - `package`: whose release counts, by its name in ledger/frameworks.py; "" of a server, which
      has `engine_version`.
    - `options`: each option's default at the version that is modelled; others are refused.
    - `fixed`: options of which only the default value is modelled.
    - `values`: of options that take a name, those it has.
    - `generations`: for each generation of the framework that has ended, its newest version.
    - `axes`: mesh axes that it can shard along, besides dp.
    - `side_streams`: whether it creates CUDA streams.
    - `transformers`: it runs Hugging Face's modelling code.
    - `optimizers`: those that it supports.
    - `loss_kernels`: whose kernels of losses it runs; "" where it has its own loss alone.
    - `complete`: a run with what its options imply for other fields.
    - `problems`: one sentence for each setting that the framework refuses, too.
    - `ledger`: the memory of one rank, at the moment of its schedule that has the peak;
      `ledgers`: at each moment that may have it, where there are several.
    - `stage_layers`: the number of layers of each stage.
    - `parameters`: elements of this rank's shard of the model.
    - `tower`: what it loads of a vision tower that text does not use; "" for nothing.
    - `host_libraries`: of each process, where they were measured; `stepping_host`: where the host
      steps the optimizer, which loads fewer of the GPU's kernels.
    - `serve`: the memory of a server that allocates a pool for its cache.
    """

    name: str
    title: str
    alone_title: str = ""
    package: str = ""
    options: Mapping[str, Any] = {}
    fixed: tuple[str, ...] = ()
    values: Mapping[str, Collection[str]] = {}
    generations: Mapping[str, str] = {}
    axes: frozenset[str] = frozenset()
    side_streams: Callable[[Run], bool] = no_side_streams
    transformers: bool = True
    optimizers: frozenset[str] = frozenset()
    loss_kernels: str = "transformers"
    complete: Callable[[Run], Run] = unchanged
    problems: Callable[[Run], Iterator[str]]
    ledger: Callable[[Run], Ledger]
    ledgers: Callable[[Run], list[Ledger]] | None = None
    stage_layers: Callable[[Run], list[int]] | None = None
    parameters: Callable[[Run], Num] | None = None
    tower: str = ""
    host_libraries: HostLibraries | None = None
    stepping_host: HostLibraries | None = None
    serve: Callable[[Run], ServerMemory] | None = None
