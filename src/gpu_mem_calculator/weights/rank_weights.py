"""The weights of one rank of a server: every tensor it holds, in groups that people read."""

from __future__ import annotations

from collections.abc import Iterable

from ..ledger.remember import remembered
from ..ledger.units import MIB
from ..model.arch import Arch
from ..model.blocks import Attention, LatentAttention, Moe
from ..replay.allocator import replay
from ..replay.stream import AllocationStream
from ..run.run import Run
from . import FormatError, WeightFormat, scheme
from .checkpoint import Group, stored_bytes
from .shards import EXPERTS, FEED_FORWARD, HEAD, NORM, NORMS, ServerShard, ShardedParameter, held

BITS = {"fp32": 32, "bf16_pure": 16, "fp16_pure": 16}
TITLES = {HEAD: "output head", EXPERTS: "experts", FEED_FORWARD: "feed-forward"}
ROUNDED = "allocator's rounding"
Item = tuple[str, int]
GEMMA_SCALED, GEMMA_FACTOR = 2560, 8  # hidden size of Gemma 3 4B; its config.json's rope_scaling


def run_scheme(run: Run) -> WeightFormat:
    """The format that a run names, or the checkpoint's own."""
    name = str(run.options.get("quantization") or "none")
    found = scheme(name, run.quantized, run.arch.family)
    if found.experts and not any(isinstance(one.mlp, Moe) for one, _, _ in run.arch.runs):
        raise FormatError(f"inference.quantization={found.name!r} packs experts alone, and the "
                          "model has none; use 'nvfp4' or another format")  # fmt: skip
    return found


def weight_items(run: Run, shard: ServerShard, scheme: WeightFormat | None = None, *,
                 extra: Iterable[Item] = (), rounded: bool = True) -> list[Item]:  # fmt: skip
    """Bytes of a rank's weights by group, scales apart from what they scale.

    `scheme` is the format as the engine holds it, by default the file's. `extra` are tensors that
    the engine makes beside the weights. A checkpoint's own bytes win where its headers were read; a
    parameter count that was given scales all of them. `rounded` adds what torch's
    allocator gives out more than it is asked for.
    """
    how = run_scheme(run) if scheme is None else scheme
    bits = BITS[run.precision]
    tensors, more = stored(run.arch, shard, how, bits), list(extra)
    own = _checkpoint_items(run, shard, bits) if how == run_scheme(run) else []
    own_parts = [(name, int(run.scaled(size))) for name, size in _sum_by_name(own or tensors)]
    found = _sum_by_name([*own_parts, *more])
    if rounded:
        sizes = tuple(size for _, size in (*tensors, *more))
        waste = allocated_bytes(sizes) - sum(sizes)
        found += [(ROUNDED, waste)] if waste >= MIB else []
    return found


def _checkpoint_items(run: Run, shard: ServerShard, bits: int) -> list[Item]:
    """The rank's share of a checkpoint's own tensors, where they are known."""
    if run.stored_form != "safetensors":
        return []
    groups = stored_bytes(run.stored, run.arch, shard, bits)
    return [(_title(where), size) for where, size in groups.items()]


def _title(where: Group) -> str:
    _, what = where
    return {"rest": "norms", "dense": "layers"}.get(what, TITLES.get(what, what))


def weights_bytes(items: Iterable[Item]) -> int:
    """All of them."""
    return sum(size for _, size in items)


def _sum_by_name(items: Iterable[Item]) -> list[Item]:
    """Items of one name in one, in their order."""
    groups: dict[str, int] = {}
    for name, size in items:
        groups[name] = groups.get(name, 0) + size
    return list(groups.items())


@remembered(64, always=True)
def stored(arch: Arch, shard: ServerShard, how: WeightFormat, bits: int) -> tuple[Item, ...]:
    """Every tensor as a server makes it, q, k and v in one, gate and up in one: (group, bytes)."""
    joint: dict[tuple[int, str, str], int] = {}
    parts: dict[tuple[int, str, str], str] = {}
    for one in held(arch, shard):
        for suffix, size in how.stored(one, bits):
            key = (one.layer, one.joint or one.name, suffix)
            joint[key] = joint.get(key, 0) + size
            parts[key] = _group_title(one, suffix)
    return tuple((parts[key], size) for key, size in joint.items())


def _group_title(one: ShardedParameter, suffix: str) -> str:
    part = NORMS if one.role == NORM and not one.name.endswith("bias") else one.part
    title = TITLES.get(part, part)
    return f"{title}: scales" if suffix else title


def allocated_bytes(sizes: Iterable[int]) -> int:
    """What torch's allocator counts for tensors that are made one after another and stay.

    A block of 10 MiB or more comes from a segment of whole 2 MiB; what is left of the segment
    stays with the block unless it is more than 1 MiB (torch 2.8 c10/cuda/CUDACachingAllocator.cpp
    should_split).
    """
    return _replayed_bytes(tuple(sizes))


@remembered(64, always=True)
def _replayed_bytes(sizes: tuple[int, ...]) -> int:
    return replay(
        AllocationStream(sizes=list(sizes), events=list(range(len(sizes))))
    ).allocated_bytes


def rotary_tables(arch: Arch, shard: ServerShard, positions: int, bits: int) -> list[Item]:
    """Cosines and sines of every position, one table for each kind of rotary embedding.

    vLLM 0.11.0 rotary_embedding/base.py: (positions, rotary size), in the model's dtype, shared by
    all layers; gpt_oss.py asks for fp32; gemma3.py has one for windows and one for the rest, and
    where that is scaled, linear_scaling_rope.py makes it so many times as long.
    """
    kinds: dict[tuple[int, bool], None] = {}
    gemma = arch.family == "gemma3_text"
    for place in shard.places:
        mixer = arch.layers[place].mixer
        size = (mixer.rotary_dim if isinstance(mixer, Attention)
                else mixer.rope_dim if isinstance(mixer, LatentAttention) else 0)  # fmt: skip
        if size:
            kinds[size, gemma and not (arch.windows and arch.windows[place])] = None
    width = 32 if arch.family == "gpt_oss" else bits
    times = GEMMA_FACTOR if arch.hidden >= GEMMA_SCALED else 1
    return [("rotary tables", (times if scaled else 1) * positions * size * width // 8)
            for size, scaled in kinds]  # fmt: skip
