"""Entries that do not depend on a run's tokens, and a cache of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from ....ledger.ledger import Entry, Instant
from ....ledger.remember import remembered
from ....run.recompute import EVERYTHING, NONE
from ....run.run import Run
from ...losses import DEFAULT as OWN_LOSS
from ...step.layer_groups import LayerGroups


class ShardEntries(Struct, frozen=True):
    """The layout of a run and the entries that do not depend on its tokens.

    plan: the units and the instants of the step; FsdpLayout or FlatLayout, by the version
    startup: the instants before it
    shards: parameters as they are stored, and buffers
    units: gathered parameters, gradients, communication buffers, the optimizer
    """

    plan: Any
    startup: tuple[Instant, ...]
    shards: tuple[Entry, ...]
    units: tuple[Entry, ...]


MakeEntries: TypeAlias = Callable[[Run, LayerGroups], ShardEntries]


def cached_without_tokens(make: MakeEntries) -> MakeEntries:
    """Decorator: cache what a function makes for equal runs but for batch, sequence and loss; of
    unrolled runs, which are large, a few. These have all instants whatever is recomputed.
    """

    def made(bare: Run, options: tuple[tuple[str, Any], ...], stack: LayerGroups) -> ShardEntries:
        return make(replace(bare, options=dict(options)), stack)

    cached, unrolled = remembered(64)(made), remembered(2)(made)

    def entries(run: Run, stack: LayerGroups) -> ShardEntries:
        bare = replace(run, batch=0, seq=0, loss=OWN_LOSS, options=None)
        options = tuple(run.options.items())
        if not run.unrolled:
            return cached(bare, options, stack)
        bare = replace(bare, recompute=NONE, recompute_quarters=4, rule=EVERYTHING, reentrant=False)
        plain = (replace(g, recompute=NONE, rule=EVERYTHING, reentrant=False) for g in stack)
        return unrolled(bare, options, tuple(plain))

    return entries
