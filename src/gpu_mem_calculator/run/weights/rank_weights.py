"""The weights of one rank of a server, in bytes, by groups that reports show; and the LoRA adapters
that it has memory for.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ...ledger.formula import bytes_each
from ...ledger.num import ceil_div, power_of_two, round_up
from ...ledger.remember import remembered
from ...ledger.source import Source
from ...ledger.units import GIB, MIB
from ...models.arch.adapters import linears
from ...models.arch.arch import Arch
from ...models.arch.blocks import Attention, LatentAttention, Moe
from ...pytorch.replay.replays import replay
from ...pytorch.replay.stream import AllocationStream
from ..run import Run
from ..served import WEIGHTS, ServerItem
from . import FormatError, WeightFormat, find_format
from .checkpoint import Group, stored_bytes
from .shards import EXPERTS, FEED_FORWARD, HEAD, NORM, NORMS, ServerShard, ShardedParameter, held

BITS = {"fp32": 32, "bf16_pure": 16, "fp16_pure": 16}
TITLES = {HEAD: "output head", EXPERTS: "experts", FEED_FORWARD: "feed-forward"}
ROUNDED = "allocator's rounding"
Item = tuple[str, int]
GEMMA_SCALED, GEMMA_FACTOR = 2560, 8  # hidden size of Gemma 3 4B; its config.json's rope_scaling


def run_format(run: Run) -> WeightFormat:
    """The weight format that a run names, or the checkpoint's."""
    name = str(run.options.get("quantization") or "none")
    weight_format = find_format(name, run.quantized, run.arch.family)
    if weight_format.experts and not any(
        isinstance(layer.mlp, Moe) for layer, _, _ in run.arch.runs
    ):
        raise FormatError(
            f"inference.quantization={weight_format.name!r} packs experts alone, and the "
            "model has none; use 'nvfp4' or another format"
        )
    return weight_format


def format_problems(run: Run) -> Iterator[str]:
    """A sentence where the run's weight format does not exist, or does not fit the model."""
    try:
        run_format(run)
    except FormatError as error:
        yield str(error)


def weight_items(
    run: Run,
    shard: ServerShard,
    stored_format: WeightFormat | None = None,
    *,
    extra: Iterable[Item] = (),
    rounded: bool = True,
) -> list[Item]:
    """Name and bytes of a rank's weights by group, with scales as separate groups.

    - `stored_format`: the format as the server stores it, by default the checkpoint's
    - `extra`: tensors that the server allocates in addition
    - `rounded`: add what torch's allocator rounds up

    Bytes of a checkpoint are used if its headers were read; a parameter count in the run file
    scales them.
    """
    weight_format = run_format(run) if stored_format is None else stored_format
    bits = BITS[run.precision]
    tensors, extra_tensors = stored(run.arch, shard, weight_format, bits), list(extra)
    checkpoint = checkpoint_items(run, shard, bits) if weight_format == run_format(run) else []
    weights = [(name, int(run.scaled(size))) for name, size in _sum_by_name(checkpoint or tensors)]
    items = _sum_by_name([*weights, *extra_tensors])
    if rounded:
        sizes = tuple(size for _, size in (*tensors, *extra_tensors))
        waste = allocated_bytes(sizes) - sum(sizes)
        items += [(ROUNDED, waste)] if waste >= MIB else []
    return items


def checkpoint_items(run: Run, shard: ServerShard, bits: int) -> list[Item]:
    """The rank's share of a checkpoint's tensors; empty if they are not known."""
    if run.stored_form != "safetensors":
        return []
    groups = stored_bytes(run.stored, run.arch, shard, bits)
    return [(_title(group), size) for group, size in groups.items()]


def _title(group: Group) -> str:
    _, kind = group
    return {"rest": "norms", "dense": "layers"}.get(kind, TITLES.get(kind, kind))


def weights_bytes(items: Iterable[Item]) -> int:
    """Sum of the bytes of all items."""
    return sum(size for _, size in items)


def _sum_by_name(items: Iterable[Item]) -> list[Item]:
    """Items with the same name as one, in the order of their first."""
    groups: dict[str, int] = {}
    for name, size in items:
        groups[name] = groups.get(name, 0) + size
    return list(groups.items())


@remembered(64, always=True)
def stored(
    arch: Arch, shard: ServerShard, weight_format: WeightFormat, bits: int
) -> tuple[Item, ...]:
    """Group and bytes of every tensor; q, k and v are one tensor, and so are gate and up."""
    return tuple((part, size) for _, part, size in _tensors(arch, shard, weight_format, bits))


def _tensors(
    arch: Arch, shard: ServerShard, weight_format: WeightFormat, bits: int
) -> Iterator[tuple[int, str, int]]:
    """Layer, group and bytes of every tensor of `stored`."""
    joint: dict[tuple[int, str, str], int] = {}
    parts: dict[tuple[int, str, str], str] = {}
    for parameter in held(arch, shard):
        for suffix, size in weight_format.stored(parameter, bits):
            key = (parameter.layer, parameter.joint or parameter.name, suffix)
            joint[key] = joint.get(key, 0) + size
            parts[key] = group_title(parameter, suffix)
    return ((key[0], parts[key], size) for key, size in joint.items())


class Offloaded(NamedTuple):
    """Parameters that stay in host RAM: their bytes, and those of the pinned blocks they are in."""

    size: int = 0
    pinned: int = 0


def offloaded(run: Run, shard: ServerShard, stored_format: WeightFormat | None = None) -> Offloaded:
    """Parameters of layers that `cpu_offload_gb` leaves in host RAM: whole ones, in order, until it
    is reached. Each is pinned alone, and torch's host allocator takes a power of two for it (torch
    2.11 aten/src/ATen/core/CachingHostAllocator.h).

    vllm 0.11.0 model_executor/models/utils.py maybe_offload_to_cpu, 0.28.0
    model_executor/offloader/uva.py; sglang 0.5.18 srt/utils/offloader.py OffloaderV1.
    """
    limit = int(float(run.options["cpu_offload_gb"] or 0) * GIB)
    size = pinned = 0
    tensors = stored_format or run_format(run)
    for layer, _, each in _tensors(run.arch, shard, tensors, BITS[run.precision]) if limit else ():
        if layer >= 0 and size < limit:
            size, pinned = size + each, pinned + power_of_two(each)
    return Offloaded(int(run.scaled(size)), int(run.scaled(pinned)))


def group_title(parameter: ShardedParameter, suffix: str) -> str:
    """The group of a tensor, as reports name it."""
    part = (
        NORMS if parameter.role == NORM and not parameter.name.endswith("bias") else parameter.part
    )
    title = TITLES.get(part, part)
    return f"{title}: scales" if suffix else title


def allocated_bytes(sizes: Iterable[int]) -> int:
    """Bytes that torch's allocator counts for tensors that are allocated in order and stay.

    A block of 10 MiB or more comes from a segment of whole 2 MiB; the rest of the segment
    stays with the block unless it is more than 1 MiB (torch 2.8 c10/cuda/CUDACachingAllocator.cpp
    should_split).
    """
    return _replayed_bytes(tuple(sizes))


@remembered(64, always=True)
def _replayed_bytes(sizes: tuple[int, ...]) -> int:
    return replay(AllocationStream.of(sizes=sizes, events=range(len(sizes)))).allocated_bytes


# Segments that torch's allocator takes from the driver for tensors that are never freed:
# c10/cuda/CUDACachingAllocator.cpp (torch 2.11). Tensors up to 1 MiB come from segments of 2 MiB,
# those below 10 MiB from segments of 20 MiB; a larger one has its segment alone, in whole steps of
# 2 MiB. The rest of a segment serves the next tensor that fits, the smallest rest first.
BLOCK, SMALL, SMALL_SEGMENT = 512, MIB, 2 * MIB
LARGE, MIDDLE_SEGMENT, STEP = 10 * MIB, 20 * MIB, 2 * MIB


def segment_bytes(size: int) -> int:
    """Bytes of the segment that is allocated for a tensor which fits into no rest."""
    if size <= SMALL:
        return SMALL_SEGMENT
    return MIDDLE_SEGMENT if size < LARGE else int(round_up(size, STEP))


def reserved_bytes(sizes: Iterable[int]) -> int:
    """Bytes of the segments for tensors of `sizes`, allocated in that order and never freed."""
    return sum(segments(sizes))


def segments(sizes: Iterable[int]) -> Iterator[int]:
    """Bytes of each of those segments."""
    rests: dict[bool, list[int]] = {True: [], False: []}  # of small segments, and of the others
    for size in sizes:
        block = max(BLOCK, int(round_up(size, BLOCK)))
        small = block <= SMALL
        free = rests[small]
        place = bisect_left(free, block)
        if place < len(free):
            left = free.pop(place) - block
        else:
            segment = segment_bytes(block)
            yield segment
            left = segment - block
        if left >= BLOCK if small else left > SMALL:
            insort(free, left)


def rotary_shapes(arch: Arch, shard: ServerShard, positions: int) -> list[tuple[int, int]]:
    """Cosines and sines of every position: the shape of a table for each kind of rotary embedding.

    vLLM 0.11.0 rotary_embedding/base.py: (positions, rotary size), in the model's dtype, shared by
    all layers; gpt_oss.py uses fp32; gemma3.py has one table for windows and one for the other
    layers, and if that is scaled, linear_scaling_rope.py makes it GEMMA_FACTOR times as long.
    """
    kinds: dict[tuple[int, bool], None] = {}
    gemma = arch.family == "gemma3_text"
    for place in shard.places:
        mixer = arch.layers[place].mixer
        size = (
            mixer.rotary_dim
            if isinstance(mixer, Attention)
            else mixer.rope_dim
            if isinstance(mixer, LatentAttention)
            else 0
        )
        if size:
            kinds[size, gemma and not (arch.windows and arch.windows[place])] = None
    factor = GEMMA_FACTOR if arch.hidden >= GEMMA_SCALED else 1
    return [((factor if scaled else 1) * positions, size) for size, scaled in kinds]


def rotary_tables(arch: Arch, shard: ServerShard, positions: int, bits: int) -> list[Item]:
    """Name and bytes of each table of `rotary_shapes`."""
    width = _rotary_bits(arch, bits)
    shapes = rotary_shapes(arch, shard, positions)
    return [("rotary tables", rows * size * width // 8) for rows, size in shapes]


def rotary_formulas(
    arch: Arch, shard: ServerShard, positions: int, bits: int
) -> list[tuple[str, str]]:
    """Name and formula of each table of `rotary_shapes`."""
    each = bytes_each(_rotary_bits(arch, bits))
    shapes = rotary_shapes(arch, shard, positions)
    return [("rotary tables", f"{rows:,} positions × {size:,} × {each}") for rows, size in shapes]


def _rotary_bits(arch: Arch, bits: int) -> int:
    return 32 if arch.family == "gpt_oss" else bits


def adapter_items(run: Run, shard: ServerShard, source: Source) -> Iterator[ServerItem]:
    """Adapters on every projection: r (in + out) elements each, sharded with the projection."""
    rank = run.options.get("max_lora_rank")
    if rank is None:
        return
    count = int(run.options.get("max_loras") or 1)
    projections = (linear for layer in shard.layers(run.arch) for linear in linears(layer))
    elements = sum(int(ceil_div(one.ins[1] + one.outs[1], shard.tp)) for one in projections)
    each = BITS[run.precision]
    size = elements * int(rank) * count * each // 8
    formula = (
        f"{count} adapters × rank {rank} × {elements:,} inputs and outputs × {bytes_each(each)}"
    )
    yield ServerItem(WEIGHTS, "adapters", size, source, formula)


def adapter_problems(run: Run) -> Iterator[str]:
    """Adapters whose rank is not given."""
    if run.options["max_loras"] and not run.options["max_lora_rank"]:
        yield "inference.max_loras needs inference.max_lora_rank; set it, or leave max_loras out"
