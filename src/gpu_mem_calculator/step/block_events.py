"""Which script a block plays at an instant of an unrolled run."""

from __future__ import annotations

from msgspec import Struct

from ..autograd.events import BlockEvents
from ..autograd.walk import BlockWalk
from ..run.phases import FORWARD
from .activations import GO, StageWalks
from .instants import StepInstant
from .layer_groups import LayerGroup

HEAD, EMBEDDING = -1, -2


class BlockRun(Struct, frozen=True, kw_only=True):
    """One block at work.

    `block` finds what its forward has kept. A checkpointed one plays `once` in forward and
    `script` twice over in backward. `goes`: a weight's gradient is gone as soon as it is added
    (`waits`: a shared one's when the embedding's is); else it stays for the step, or `until` an
    instant comes.
    """

    block: int
    script: BlockEvents
    once: BlockEvents | None = None
    forward: bool = False
    reentrant: bool = False
    goes: bool = False
    waits: bool = False
    until: str = ""


def plays(
    blocks: tuple[LayerGroup, ...], beats: tuple[StepInstant, ...], done: StageWalks
) -> dict[str, BlockRun]:
    """A play for each beat at which a layer or the head works."""
    found: dict[str, BlockRun] = {}
    for beat in beats:
        if beat.work == "layer":
            block = blocks[beat.stretch]
            walk = done.at(beat.stretch, block, beat)
            found[beat.name] = _play(walk, beat, done, beat.stretch, block)
        elif beat.work == "head":
            found[beat.name] = _play(done.head, beat, done, HEAD)
        elif done.embedding is not None and done.plays_embedding(beat):
            found[beat.name] = BlockRun(
                block=EMBEDDING, script=done.embedding, goes=done.goes(beat)
            )
    return found


def _play(
    walk: BlockWalk,
    beat: StepInstant,
    done: StageWalks,
    index: int,
    block: LayerGroup | None = None,
) -> BlockRun:
    full = block is not None and block.recompute == "full"
    return BlockRun(
        block=index, script=walk.script, once=walk.once if full else None,
        forward=beat.instant.phase == FORWARD, reentrant=block is not None and block.reentrant,
        goes=done.goes(beat), waits=done.embedding is not None and done.gradients != GO,
    )  # fmt: skip
