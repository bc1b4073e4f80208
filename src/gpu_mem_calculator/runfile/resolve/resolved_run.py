"""A run with every choice made, its engine, its model and its hardware."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from ...pytorch.replay.settings import AllocatorSettings
from ...run.cuda.runtimes import renamed_parts
from ...run.engine import Engine
from ...run.limits import BoundedLimit, Limit
from ...run.releases import UserRelease
from ...run.run import Run
from ..find_model.model_source import ResolvedModel
from .hardware import Hardware

if TYPE_CHECKING:
    from ...training.lengths.batches import DrawnBatches


class ResolvedRun(Struct, frozen=True, kw_only=True):
    """A run, its engine, hardware, model and allocator settings.

    `assumed` and `warnings` have one sentence for each, `meant` each key that a program means.
    `decisive` are the assumptions that could turn the verdict, in a few words; `limits` what is not
    modelled; `versions` the releases that are known, by package; `lengths` the batches, where they
    differ: `run` then has the longest.
    """

    run: Run
    engine: Engine
    hardware: Hardware
    model: ResolvedModel
    allocator: AllocatorSettings = AllocatorSettings()
    assumed: tuple[str, ...]
    warnings: tuple[str, ...]
    meant: tuple[str, ...] = ()
    decisive: tuple[str, ...] = ()
    limits: tuple[Limit | BoundedLimit, ...] = ()
    lengths: DrawnBatches | None = None
    versions: Mapping[str, UserRelease] = {}

    @property
    def outside_torch(self) -> tuple[tuple[str, int, str], ...]:
        """What CUDA takes outside torch on each GPU: (name, bytes, source). For servers with a
        cache pool see `ServerMemory.outside` instead.
        """
        from ...run.cuda.libraries import outside_torch

        engine, run = self.engine, self.run
        streams = engine.side_streams(run)
        parts = outside_torch(run, transformers=engine.transformers, streams=streams)
        return renamed_parts(run, tuple(parts))

    @property
    def host_libraries(self) -> tuple[str, int, str]:
        """Host memory of the libraries in each rank's process: (name, bytes, source). 0 bytes for
        servers, where it is not known.
        """
        from ...run.cuda.libraries import host_libraries

        return host_libraries(self.run, self.engine, nccl=self.hardware.num_gpus > 1)

    @property
    def longest_seq(self) -> int | None:
        """The longest prompt or sequence in tokens, where positions are learned; else None."""
        learned = any("position" in dict(w.dims) for w in self.run.arch.embedding)
        return self.run.arch.max_seq_len - int(self.run.generated) if learned else None
