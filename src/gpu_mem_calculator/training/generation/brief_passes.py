"""Decoding steps of a rollout, without tensors that decide nothing.

A rollout is replayed in every step of training, so its stream must be short. The highest passes are
the prompt's, the first and the last ones: they are written whole. Of the others stays what is
larger than torch's small blocks, which have segments of their own, and what outlives its block.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from msgspec.structs import replace

from ...pytorch.autograd.events import BlockEvents
from ...pytorch.replay.rounding import SMALL, UNIT
from .decode_steps import ENDS, LAST, PROMPT
from .instants import GenerationInstants
from .stream import PassEvents


def brief_passes(
    table: GenerationInstants, events: Mapping[str, PassEvents]
) -> dict[str, PassEvents]:
    """The events of each instant, those of the passes between the ends shortened."""
    names = list(dict.fromkeys(one.step for one in table))
    steps = [name for name in names if name.startswith(LAST)]
    whole = {PROMPT, *steps[:ENDS], *steps[-ENDS:]}
    return {
        one.name: events[one.name] if one.step in whole else _brief(events[one.name])
        for one in table
        if one.name in events
    }


def _brief(run: PassEvents) -> PassEvents:
    stays = (*run.cache_before, *run.cache_after, *run.named, *run.casts)
    return replace(run, script=_without_small(run.script, stays))


@cache
def _without_small(block: BlockEvents, stays: tuple[int, ...]) -> BlockEvents:
    """The block without small tensors that it both allocates and frees."""
    made = {event for event in block.forward if event >= 0}
    freed = {~event for event in block.forward if event < 0}
    ends = {block.entry, block.exit, *stays}
    small = {n for n in made & freed if int(block.sizes[n]) <= SMALL * UNIT and n not in ends}
    kept = (e for e in block.forward if (e if e >= 0 else ~e) not in small)
    return replace(block, forward=tuple(kept))
