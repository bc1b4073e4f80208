"""A cache of entries that do not depend on a run's tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from msgspec.structs import replace

from ...ledger.remember import remembered
from ...run.run import Run
from ...step.layer_groups import LayerGroup

Entries = TypeVar("Entries")
MakeEntries = Callable[[Run, tuple[LayerGroup, ...]], Entries]


def cached_without_tokens(make: MakeEntries[Entries]) -> MakeEntries[Entries]:
    """Decorator: cache what a function makes for equal runs but for batch and sequence. Unrolled
    runs are not cached.
    """

    @remembered(64)
    def cached(
        bare: Run, options: tuple[tuple[str, Any], ...], stack: tuple[LayerGroup, ...]
    ) -> Entries:
        return make(replace(bare, options=dict(options)), stack)

    def entries(run: Run, stack: tuple[LayerGroup, ...]) -> Entries:
        if run.unrolled:
            return make(run, stack)
        bare = replace(run, batch=0, seq=0, options=None)
        return cached(bare, tuple(run.options.items()), stack)

    return entries
