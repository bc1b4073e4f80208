"""A rank's weights from the tensors of a checkpoint: bytes as stored, sharded as the model is.

A checkpoint's names differ from the model's (one tensor per expert, scales next to weights), so
tensors are summed by layer and kind; a rank has its share of the elements of each group.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from math import prod

from ...ledger.remember import remembered
from ...models.arch.arch import Arch
from ..run import StoredTensor
from .shards import TOWER, ServerShard, ShardedParameter, held

LAYER = r"(?:^|\.)(?:layers|h|blocks|block|blk)\.(\d+)\."
Group = tuple[int, str]  # layer (-1: outside the layers), and kind
OUTSIDE_LAYERS, EXPERTS, DENSE = -1, "experts", "dense"
LEFT_OUT = ("rotary_emb", "rope_freqs", "inv_freq", "masked_bias")
# In names of vision and audio towers.
TOWER_WORDS = ("vision", "visual", "mm_projector", "multi_modal_projector", "audio")


def group(name: str, num_layers: int) -> Group | None:
    """The group of a stored tensor; None if a rank does not load it.

    Layers after the last are for multi-token prediction.
    """
    if any(word in name for word in LEFT_OUT):
        return None
    if any(word in name for word in TOWER_WORDS):
        return OUTSIDE_LAYERS, TOWER
    match = re.search(LAYER, name)
    if match is None:
        lower = name.lower()
        if "embed" in lower or "embd" in lower or "wte" in lower:
            return OUTSIDE_LAYERS, "embedding"
        is_head = "head" in lower or lower.startswith("output.")
        return OUTSIDE_LAYERS, "head" if is_head else "rest"
    layer = int(match[1])
    if layer >= num_layers:
        return None
    is_expert = ".experts." in name or "_exps." in name
    return layer, EXPERTS if is_expert else DENSE


def _group_of(parameter: ShardedParameter) -> Group:
    if parameter.layer >= 0:
        return parameter.layer, EXPERTS if parameter.role == "expert" else DENSE
    if parameter.part == TOWER:
        return OUTSIDE_LAYERS, TOWER
    return OUTSIDE_LAYERS, parameter.role if parameter.role in ("embedding", "head") else "rest"


def _elements_by_group(parameters: Iterable[ShardedParameter]) -> dict[Group, int]:
    sizes: dict[Group, int] = defaultdict(int)
    for parameter in parameters:
        sizes[_group_of(parameter)] += prod(parameter.shape)
    return sizes


@remembered(8, always=True)
def stored_groups(stored: tuple[StoredTensor, ...], num_layers: int, bits: int) -> dict[Group, int]:
    """Bytes of a checkpoint by group; unquantized weights count `bits` per element."""
    sizes: dict[Group, int] = defaultdict(int)
    for name, num_bytes, elements in stored:
        key = group(name, num_layers)
        if key is not None:
            sizes[key] += elements * bits // 8 if elements else num_bytes
    return dict(sizes)


def stored_bytes(
    stored: tuple[StoredTensor, ...], arch: Arch, shard: ServerShard, bits: int
) -> dict[Group, int]:
    """Bytes of each group of a checkpoint on one rank."""
    checkpoint = stored_groups(stored, len(arch.layers), bits)
    model_elements = _elements_by_group(held(arch, ServerShard(places=range(len(arch.layers)))))
    rank_elements = _elements_by_group(held(arch, shard))
    sizes = {}
    for key, elements in rank_elements.items():
        stored_key = key
        if key not in checkpoint and key[1] == "head":  # tied: the embedding is stored once
            stored_key = (OUTSIDE_LAYERS, "embedding")
        if checkpoint.get(stored_key) and model_elements.get(stored_key):
            sizes[key] = checkpoint[stored_key] * elements // model_elements[stored_key]
    return sizes
