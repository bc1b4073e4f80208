"""FSDP2's units: what one `fully_shard` call shards, gathers and reduces.

Every layer is a unit, the root is everything else. A parameter is cut along its first dimension
and padded to equal shards, so a tensor whose first dimension is short (a LoRA matrix, a stack of
experts) costs more than its share. torch 2.13 distributed/fsdp/_fully_shard: `F` below.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from ...ledger.num import Num, ceil_div, larger, power_of_two
from ...model.adapters import adapted
from ...model.arch import Layer
from ...model.blocks import Weight
from ..huggingface.ops import Adapter
from ..run import Run
from ..unsplit import unsplit_bytes


class Widths(Struct, frozen=True):
    """Bits of a shard, of the gathered parameter and its gradient, and of the reduction."""

    stored: int
    compute: int
    reduce: int


class Piece(Struct, frozen=True):
    """One parameter of a unit: its dimensions, its widths, whether it is trained."""

    weight: Weight
    widths: Widths
    trained: bool


class Unit(Struct, frozen=True, kw_only=True):
    """Bytes of one unit on one rank."""

    shard: Num = 0  # the parameters it stores
    slack: Num = 0  # the rest of blocks that torch's allocator does not split for them
    gathered: Num = 0  # whole parameters in the compute dtype; the all-gather buffer is as big
    grads: Num = 0  # whole gradients in the compute dtype
    reduce_in: Num = 0  # reduce-scatter's flat input, in the reduce dtype
    reduced: Num = 0  # its flat output
    shard_grads: Num = 0  # the gradients that stay, in the dtype of the shards
    grads_slack: Num = 0
    converted: Num = 0  # shard_grads where they are a cast of `reduced`, else 0
    stepped: Num = 0  # elements of its shards that are trained
    largest: Num = 0  # of one of them
    tensors: int = 0  # how many tensors they are
    pinned: Num = 0  # under offload: the host's blocks for the shards
    pinned_grads: Num = 0  # and for their gradients
    staged: Num = 0  # what one rank alone needs beyond `gathered` to copy them to the GPU

    @property
    def reducing(self) -> Num:
        """Beside reduce-scatter's input: first the whole gradients, then its output.

        F/_fsdp_collectives.py foreach_reduce: the gradients go after the copy-in, then the
        output is made, then it is cast to the dtype of the shards.
        """
        return larger(self.grads, self.reduced + self.converted)


def shard_elements(weight: Weight, ranks: Num) -> Num:
    """Elements of one rank's padded shard: ceil(d0 / ranks) rows (F/_fsdp_param.py:298-316)."""
    count: Num = ceil_div(weight.dims[0][1], ranks)
    for _, size in weight.dims[1:]:
        count = count * size
    return count


def _part(run: Run, piece: Piece, ranks: Num) -> Num:
    """Elements of one rank's shard; adapters keep their size whatever count was given."""
    part = shard_elements(piece.weight, ranks)
    return part if run.frozen and piece.trained else run.scaled(part)


def unit(run: Run, pieces: Sequence[Piece], ranks: Num, *, offload: bool = False) -> Unit:
    """Add up the parameters that one `fully_shard` call owns."""
    sums: dict[str, Num] = dict.fromkeys(Unit.__struct_fields__, 0)

    def add(name: str, elements: Num, bits: int) -> None:
        sums[name] = sums[name] + elements * bits // 8

    splits = not run.expandable_segments  # else no block has a rest
    for piece in pieces:
        widths, part = piece.widths, _part(run, piece, ranks)
        add("shard", part, widths.stored)
        if splits:
            sums["slack"] = sums["slack"] + unsplit_bytes(part * widths.stored // 8)
        add("gathered", part * ranks, widths.compute)
        if piece.trained:
            numel = piece.weight.numel
            whole = numel if run.frozen else run.scaled(numel)
            add("grads", whole, widths.compute)
            add("reduce_in", part * ranks, widths.reduce)
            add("reduced", part, widths.reduce)
            add("shard_grads", part, widths.stored)
            if widths.reduce != widths.stored:
                add("converted", part, widths.stored)
            add("stepped", part, 8)
            sums["largest"] = larger(sums["largest"], part)
            sums["tensors"] += 1
    sums["grads_slack"] = unsplit_bytes(sums["shard_grads"]) if splits else 0
    if offload:
        sums |= _offloaded(run, pieces, ranks)
    return Unit(**sums)


def _offloaded(run: Run, pieces: Sequence[Piece], ranks: Num) -> dict[str, Num]:
    """Blocks of pinned host memory, and the highest moment of a gather by one rank alone.

    The host allocator rounds to powers of two (ATen/core/CachingHostAllocator.h:300). One rank
    copies a parameter to the GPU as it is stored, casts it, and copies it again into its gathered
    place, while the cast of the parameter before is still named (F/_fsdp_param_group.py:437-460,
    F/_fsdp_param.py:896-901).
    """
    pinned: Num = 0
    grads: Num = 0
    made: Num = 0  # gathered so far
    before: Num = 0
    highest: Num = 0
    for piece in pieces:
        part = _part(run, piece, ranks)
        stored, cast = (part * bits // 8 for bits in (piece.widths.stored, piece.widths.compute))
        block = power_of_two(stored)
        pinned = pinned + block
        grads = grads + block if piece.trained else grads
        fresh = stored if piece.widths.stored == piece.widths.compute else stored + cast
        highest = larger(highest, made + larger(before + fresh, 2 * cast))
        made, before = made + cast, cast
    return {"pinned": pinned, "pinned_grads": grads, "staged": highest - made}


def adapter_weights(layer: Layer, adapter: Adapter) -> Iterator[Weight]:
    """LoRA's matrices: A is (r, in), B is (out, r); DoRA adds a magnitude of (out)."""
    for one in adapted(layer, adapter.targets):
        yield Weight(f"{one.name}.lora_A", (("lora", adapter.rank), one.ins))
        yield Weight(f"{one.name}.lora_B", (one.outs, ("lora", adapter.rank)))
        if adapter.dora:
            yield Weight(f"{one.name}.magnitude", (one.outs,))


def layer_pieces(run: Run, layer: Layer, base: Widths, extra: Widths) -> list[Piece]:
    """A layer's parameters; with adapters the base is sharded too, but only they are trained."""
    pieces = [Piece(weight, base, not run.frozen) for weight in layer.weights()]
    if run.adapter is not None:
        pieces += [Piece(weight, extra, True) for weight in adapter_weights(layer, run.adapter)]
    return pieces


def root_pieces(run: Run, base: Widths) -> list[Piece]:
    """Embedding, final norm and head; a tied table is there once."""
    arch = run.arch
    norm = arch.embedding_norm
    weights = [*arch.embedding, *(norm.weights() if norm else ()), *arch.after_weights()]
    return [Piece(weight, base, not run.frozen) for weight in weights]
