"""TensorRT-LLM's paged cache: blocks of all layers that share an attention window.

Legend: p tokens of a block. Every layer keeps the whole sequence unless `max_attention_window` says
otherwise: the model's windows alone change nothing (_util.py, resource_manager.py KVCacheManager).
"""

from __future__ import annotations

from msgspec import Struct

from ...ledger.num import ceil_div
from ...models.arch.arch import Arch
from ...run.run import Run
from ...run.weights.shards import ServerShard
from ...training.generation.kv_cache import CROSS, INDEX, STATE, RowBytes, layer_cache, unscaled_row
from .defaults import beams, max_seq_len, tokens_per_block
from .versions import TORCH, backend, version

BITS = {"bf16": 16, "fp16": 16, "fp32": 32, "fp8": 8, "int8": 8}
NO_BLOCK_BYTES = 1 << 62  # bytes of a sequence if there is no block for it
SCALED = 16  # elements of NVFP4 that share an fp8 scale


class WindowLayers(Struct, frozen=True):
    """Layers with one window: the most tokens they keep, and bytes of a token in all of them."""

    tokens: int
    token_bytes: int


class WindowPools(Struct, frozen=True, kw_only=True):
    """The pool of one rank: blocks for each window.

    - `windows`: layers by window, shortest first; `blocks`: number of blocks of each
    - `block`: tokens of a block; `beams`: beam width
    - `bytes`: bytes of all blocks
    - `cross_bytes`: bytes of the pool for the encoder's keys and values
    """

    windows: tuple[WindowLayers, ...]
    blocks: tuple[int, ...]
    block: int
    beams: int
    bytes: int
    cross_bytes: int = 0

    @property
    def formula(self) -> str:
        """How `bytes` is computed."""
        counted = zip(self.windows, self.blocks, strict=True)
        return " + ".join(
            f"{blocks:,} blocks × {self.block} tokens × {window.token_bytes:,} bytes"
            for window, blocks in counted
        )

    @property
    def tokens(self) -> int:
        """Tokens that the log reports: those of the longest window."""
        return self.blocks[-1] * self.block if self.blocks else 0

    @property
    def token_bytes(self) -> int:
        """Bytes of one more token of a sequence longer than the shorter windows."""
        return self.windows[-1].token_bytes if self.windows else 0

    def sequence_bytes(self, context: int, total: int) -> int:
        """Bytes that one sequence takes of `total`, the pool and all that grows with it.

        The share of the window in which the fewest sequences fit.
        """
        most = 0
        for window, count in zip(self.windows, self.blocks, strict=True):
            blocks = int(ceil_div(min(context, window.tokens), self.block))
            share = int(ceil_div(total * self.beams * blocks, count)) if count else NO_BLOCK_BYTES
            most = max(most, share)
        return most


def cache_dtype(run: Run) -> str:
    """The type of keys and values; `auto`: the checkpoint's, otherwise that of the weights."""
    dtype = str(run.options["kv_cache_dtype"])
    if dtype != "auto":
        return dtype
    config = run.quantized or {}
    inner = config.get("quantization") or config
    algorithm = inner.get("kv_cache_quant_algo") or config.get("kv_cache_quant_algo")
    if isinstance(config.get("kv_cache_scheme"), dict) or str(algorithm).upper() == "FP8":
        return "fp8"
    if str(algorithm).upper() == "NVFP4":
        return "nvfp4"
    return run.precision.partition("_")[0]


def cache_row(run: Run) -> RowBytes:
    """Function from elements of a head to bytes; NVFP4 has an fp8 scale for every 16 elements."""
    name = cache_dtype(run)
    if name == "nvfp4":
        return lambda elements: int(ceil_div(elements, 2) + ceil_div(elements, SCALED))
    return unscaled_row(BITS[name])


def layer_bytes(
    run: Run, arch: Arch, place: int, shard: ServerShard, *, cross: bool = False
) -> int:
    """Bytes of one token in one layer; `cross`: of the encoder's keys and values.

    An indexer's key is fp8 with a scale for every 128 elements.
    """
    total = 0
    for entry in layer_cache(arch.layers[place], None, shard, cache_row(run), 16, 16):
        if entry.kind == STATE or (entry.kind == CROSS) != cross:
            continue
        elements = getattr(getattr(arch.layers[place].mixer, "index", None), "key_dim", 0)
        total += elements + elements // 128 * 4 if entry.kind == INDEX else entry.token_bytes
    return total


def window_layers(run: Run, shard: ServerShard) -> tuple[WindowLayers, ...]:
    """The rank's layers by window, shortest first; a draft's layers count with the longest.

    `max_attention_window` is a pattern that repeats over the layers.
    """
    longest = max_seq_len(run)
    windows = run.options.get("max_attention_window") or [longest]
    pattern = [min(int(tokens), longest) for tokens in windows]
    sizes: dict[int, int] = {}
    for local, place in enumerate(shard.places):
        size = layer_bytes(run, run.arch, place, shard)
        if size:
            window = pattern[local % len(pattern)]
            sizes[window] = sizes.get(window, 0) + size
    if run.draft is not None and sizes:
        layers = range(len(run.draft.layers))
        sizes[max(sizes)] += sum(layer_bytes(run, run.draft, place, shard) for place in layers)
    return tuple(WindowLayers(tokens, sizes[tokens]) for tokens in sorted(sizes))


def cross_bytes(run: Run, shard: ServerShard) -> int:
    """Bytes of one encoder token in all layers."""
    return sum(layer_bytes(run, run.arch, place, shard, cross=True) for place in shard.places)


def pool(run: Run, shard: ServerShard, available: int) -> WindowPools:
    """The pool from `available` bytes: an equal share for each window, in whole blocks.

    The PyTorch backend rounds down since 1.2.0, and up before, as engines always do. `max_tokens`
    limits the blocks if there is one window.
    """
    windows, block = window_layers(run, shard), tokens_per_block(run)
    cross_token, share = cross_bytes(run, shard), 0.0
    if cross_token:
        share = float(run.options.get("cross_kv_cache_fraction") or 0.5)
    rounds_down = backend(run) == TORCH and version(run) >= (1, 2, 0)
    max_tokens = run.options.get("max_total_tokens") if len(windows) == 1 else None
    blocks = []
    for window in windows:
        tokens = max(0, int(available * (1 - share))) // len(windows) // window.token_bytes
        tokens = min(tokens, int(max_tokens)) if max_tokens else tokens
        blocks.append(int(tokens // block if rounds_down else ceil_div(tokens, block)))
    counted = zip(windows, blocks, strict=True)
    cross_block = cross_token * block
    return WindowPools(
        windows=windows,
        blocks=tuple(blocks),
        block=block,
        beams=beams(run),
        bytes=sum(layers.token_bytes * count * block for layers, count in counted),
        cross_bytes=int(max(0, available) * share) // max(1, cross_block) * cross_block,
    )


def sequence_needs(run: Run, shard: ServerShard, context: int) -> int:
    """Bytes of the smallest pool that holds one sequence; every window has an equal share."""
    block, windows = tokens_per_block(run), window_layers(run, shard)
    most = 0
    for window in windows:
        blocks = int(ceil_div(min(context, window.tokens), block))
        most = max(most, window.token_bytes * block * blocks)
    return beams(run) * len(windows) * most
