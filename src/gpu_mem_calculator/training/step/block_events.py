"""Which events a block emits at each instant of an unrolled run."""

from __future__ import annotations

from msgspec import Struct

from ...pytorch.autograd.events import BlockEvents
from ...pytorch.autograd.walk import BlockWalk
from ...run.phases import FORWARD
from ...run.recompute import FULL
from .activations import FREE_AT_ONCE, StageWalks
from .instants import Instants, StepInstant
from .layer_groups import LayerGroup, LayerGroups

HEAD, EMBEDDING = -1, -2


class BlockRun(Struct, frozen=True, kw_only=True):
    """One block that runs forward or backward.

    - `block`: the layer's index, HEAD or EMBEDDING; backward finds by it what forward has kept.
    - `script`: its events. A checkpointed block runs `once` in forward, and all of `script` in
      backward.
    - `reentrant`: its checkpoint is, and holds the recomputed output until backward ends.
    - `offloaded`: its checkpoint keeps the input on the host, and copies it back.
    - `goes`: a weight's gradient is freed as soon as it is added to an existing one.
    - `waits`: the gradient of a shared weight is freed with the embedding's instead.
    - `until`: the instant at which other weights' gradients are freed; "" for the end of the step.
    """

    block: int
    script: BlockEvents
    once: BlockEvents | None = None
    forward: bool = False
    reentrant: bool = False
    offloaded: bool = False
    goes: bool = False
    waits: bool = False
    until: str = ""


def block_runs(groups: LayerGroups, instants: Instants, walks: StageWalks) -> dict[str, BlockRun]:
    """The block that runs at each instant: a layer, the head or the embedding, by instant name."""
    runs: dict[str, BlockRun] = {}
    for instant in instants:
        if instant.work == "layer":
            group = groups[instant.stretch]
            walk = walks.at(instant.stretch, group, instant)
            runs[instant.name] = _block_run(walk, instant, walks, instant.stretch, group)
        elif instant.work == "head":
            runs[instant.name] = _block_run(walks.head, instant, walks, HEAD)
        elif walks.embedding is not None and walks.plays_embedding(instant):
            runs[instant.name] = BlockRun(
                block=EMBEDDING, script=walks.embedding, goes=walks.goes(instant)
            )
    return runs


def _block_run(
    walk: BlockWalk,
    instant: StepInstant,
    walks: StageWalks,
    index: int,
    group: LayerGroup | None = None,
) -> BlockRun:
    full = group is not None and group.recompute == FULL
    return BlockRun(
        block=index,
        script=walk.script,
        once=walk.once if full else None,
        forward=instant.instant.phase == FORWARD,
        reentrant=group is not None and group.reentrant,
        offloaded=group is not None and group.offloaded,
        goes=walks.goes(instant),
        waits=walks.embedding is not None and walks.gradients != FREE_AT_ONCE,
    )
