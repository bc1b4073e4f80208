"""TensorRT-LLM's paged cache: blocks of all layers that share an attention window.

Legend: p tokens of a block. Every layer keeps the whole sequence unless `max_attention_window` says
otherwise: windows of the model alone change nothing (_util.py, resource_manager.py KVCacheManager).
"""

from __future__ import annotations

from msgspec import Struct

from ...generation.kv_cache import CROSS, INDEX, STATE, Row, layer_cache, plain_row
from ...ledger.num import ceil_div
from ...model.arch import Arch
from ...run.run import Run
from ...weights.shards import ServerShard
from .defaults import beams, max_seq_len, tokens_per_block
from .versions import TORCH, backend, version

BITS = {"bf16": 16, "fp16": 16, "fp32": 32, "fp8": 8, "int8": 8}
NO_BLOCK_BYTES = 1 << 62  # bytes of a sequence where there is no block for it
SCALED = 16  # elements of NVFP4 that share an fp8 scale


class WindowLayers(Struct, frozen=True):
    """Layers with one window: tokens they keep at most, and bytes of a token in all of them."""

    tokens: int
    token_bytes: int


class WindowPools(Struct, frozen=True, kw_only=True):
    """Blocks for each window, and what they take. `cross`: of the encoder's keys and values."""

    windows: tuple[WindowLayers, ...]
    blocks: tuple[int, ...]
    block: int  # tokens
    beams: int
    bytes: int
    cross_bytes: int = 0

    @property
    def tokens(self) -> int:
        """What the log says fits: tokens of the longest window."""
        return self.blocks[-1] * self.block if self.blocks else 0

    @property
    def token_bytes(self) -> int:
        """One token more of a sequence longer than the shorter windows."""
        return self.windows[-1].token_bytes if self.windows else 0

    def sequence_bytes(self, context: int, whole: int) -> int:
        """What one sequence takes of `whole` bytes, the pool and all that grows with it: the share
        of the window with the least room.
        """
        parts = [
            int(
                ceil_div(
                    whole * self.beams * int(ceil_div(min(context, window.tokens), self.block)),
                    count,
                )
            )
            if count
            else NO_BLOCK_BYTES
            for window, count in zip(self.windows, self.blocks, strict=True)
        ]
        return max(parts, default=0)


def cache_dtype(run: Run) -> str:
    """How keys and values are stored; `auto`: as the checkpoint says, else as the weights are."""
    given = str(run.options["kv_cache_dtype"])
    if given != "auto":
        return given
    own = run.quantized or {}
    inner = own.get("quantization") or own
    named = inner.get("kv_cache_quant_algo") or own.get("kv_cache_quant_algo")
    if isinstance(own.get("kv_cache_scheme"), dict) or str(named).upper() == "FP8":
        return "fp8"
    if str(named).upper() == "NVFP4":
        return "nvfp4"
    return run.precision.partition("_")[0]


def cache_row(run: Run) -> Row:
    """Bytes of one head's key or value; NVFP4 has an fp8 scale for every 16 elements."""
    name = cache_dtype(run)
    if name == "nvfp4":
        return lambda elements: int(ceil_div(elements, 2) + ceil_div(elements, SCALED))
    return plain_row(BITS[name])


def layer_bytes(
    run: Run, arch: Arch, place: int, shard: ServerShard, *, cross: bool = False
) -> int:
    """One token in one layer; an indexer's key is fp8 with a scale for every 128 elements."""
    total = 0
    for one in layer_cache(arch.layers[place], None, shard, cache_row(run), 16, 16):
        if one.kind == STATE or (one.kind == CROSS) != cross:
            continue
        elements = getattr(getattr(arch.layers[place].mixer, "index", None), "key_dim", 0)
        total += elements + elements // 128 * 4 if one.kind == INDEX else one.token_bytes
    return total


def window_layers(run: Run, shard: ServerShard) -> tuple[WindowLayers, ...]:
    """The rank's layers by window, shortest first; a draft's layers are beside the longest.

    `max_attention_window` is a pattern that repeats over the layers.
    """
    longest = max_seq_len(run)
    pattern = [min(int(w), longest) for w in run.options.get("max_attention_window") or [longest]]
    found: dict[int, int] = {}
    for local, place in enumerate(shard.places):
        size = layer_bytes(run, run.arch, place, shard)
        if size:
            window = pattern[local % len(pattern)]
            found[window] = found.get(window, 0) + size
    if run.draft is not None and found:
        more = sum(layer_bytes(run, run.draft, place, shard)
                   for place in range(len(run.draft.layers)))  # fmt: skip
        found[max(found)] += more
    return tuple(WindowLayers(tokens, found[tokens]) for tokens in sorted(found))


def cross_bytes(run: Run, shard: ServerShard) -> int:
    """One token of the encoder in all layers."""
    return sum(layer_bytes(run, run.arch, place, shard, cross=True) for place in shard.places)


def pool(run: Run, shard: ServerShard, available: int) -> WindowPools:
    """What `available` bytes are cut into: equal shares for each window, whole blocks in each.

    The PyTorch backend rounds down since 1.2.0, and up before, as engines always do. `max_tokens`
    caps the blocks where there is one window.
    """
    found, block = window_layers(run, shard), tokens_per_block(run)
    cross, share = cross_bytes(run, shard), 0.0
    if cross:
        share = float(run.options.get("cross_kv_cache_fraction") or 0.5)
    down = backend(run) == TORCH and version(run) >= (1, 2, 0)
    most = run.options.get("max_total_tokens") if len(found) == 1 else None
    blocks = []
    for window in found:
        tokens = max(0, int(available * (1 - share))) // len(found) // window.token_bytes
        tokens = min(tokens, int(most)) if most else tokens
        blocks.append(int(tokens // block if down else ceil_div(tokens, block)))
    taken = sum(w.token_bytes * n * block for w, n in zip(found, blocks, strict=True))
    other = int(max(0, available) * share) // (cross * block) * cross * block if cross else 0
    return WindowPools(
        windows=found,
        blocks=tuple(blocks),
        block=block,
        beams=beams(run),
        bytes=taken,
        cross_bytes=other,
    )


def sequence_needs(run: Run, shard: ServerShard, context: int) -> int:
    """The least pool that holds one sequence: every window has an equal share."""
    block, found = tokens_per_block(run), window_layers(run, shard)
    each = [window.token_bytes * block * int(ceil_div(min(context, window.tokens), block))
            for window in found]  # fmt: skip
    return beams(run) * len(found) * max(each, default=0)
