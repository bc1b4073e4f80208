"""A rank's weights from the tensors of a checkpoint: bytes as they are stored, cut as the model is.

A checkpoint has names of its own (each expert by itself, scales beside their weights), so tensors
are gathered by layer and by what they are; a rank has of each group its share of the elements.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from math import prod

from ..ledger.remember import remembered
from ..model.arch import Arch
from ..run.run import StoredTensor
from .shards import TOWER, ServerShard, ShardedParameter, held

LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|blk)\.(\d+)\.")
Group = tuple[int, str]  # layer (-1 beside the stack), and what is in it
OUTSIDE_LAYERS, EXPERTS, DENSE = -1, "experts", "dense"
LEFT_OUT = ("rotary_emb", "rope_freqs", "inv_freq", "masked_bias")
TOWER_WORDS = (
    "vision",
    "visual",
    "mm_projector",
    "multi_modal_projector",
    "audio",
)  # in towers' names


def group(name: str, num_layers: int) -> Group | None:
    """Where a stored tensor belongs; None for what a rank does not hold.

    Layers behind the last are for predicting several tokens.
    """
    if any(word in name for word in LEFT_OUT):
        return None
    if any(word in name for word in TOWER_WORDS):
        return OUTSIDE_LAYERS, TOWER
    found = LAYER.search(name)
    if found is None:
        lower = name.lower()
        if "embed" in lower or "embd" in lower or "wte" in lower:
            return OUTSIDE_LAYERS, "embedding"
        is_head = "head" in lower or lower.startswith("output.")
        return OUTSIDE_LAYERS, "head" if is_head else "rest"
    layer = int(found[1])
    if layer >= num_layers:
        return None
    spread = ".experts." in name or "_exps." in name
    return layer, EXPERTS if spread else DENSE


def _group_of(one: ShardedParameter) -> Group:
    if one.layer >= 0:
        return one.layer, EXPERTS if one.role == "expert" else DENSE
    if one.part == TOWER:
        return OUTSIDE_LAYERS, TOWER
    return OUTSIDE_LAYERS, one.role if one.role in ("embedding", "head") else "rest"


def _elements_by_group(parameters: Iterable[ShardedParameter]) -> dict[Group, int]:
    sizes: dict[Group, int] = defaultdict(int)
    for one in parameters:
        sizes[_group_of(one)] += prod(one.shape)
    return sizes


@remembered(8, always=True)
def stored_groups(stored: tuple[StoredTensor, ...], num_layers: int, bits: int) -> dict[Group, int]:
    """Bytes of a checkpoint by group, plain weights in so many bits."""
    sizes: dict[Group, int] = defaultdict(int)
    for name, num_bytes, elements in stored:
        where = group(name, num_layers)
        if where is not None:
            sizes[where] += elements * bits // 8 if elements else num_bytes
    return dict(sizes)


def stored_bytes(
    stored: tuple[StoredTensor, ...], arch: Arch, shard: ServerShard, bits: int
) -> dict[Group, int]:
    """What a rank has of each group of a checkpoint."""
    found = stored_groups(stored, len(arch.layers), bits)
    whole = _elements_by_group(held(arch, ServerShard(places=range(len(arch.layers)))))
    own = _elements_by_group(held(arch, shard))
    sizes = {}
    for where, elements in own.items():
        kept = where
        if where not in found and where[1] == "head":  # tied: the embedding serves for both
            kept = (OUTSIDE_LAYERS, "embedding")
        if found.get(kept) and whole.get(kept):
            sizes[where] = found[kept] * elements // whole[kept]
    return sizes
