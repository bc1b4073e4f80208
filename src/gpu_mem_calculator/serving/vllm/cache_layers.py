"""What vLLM keeps of each layer: pages of the pool, one for a block of tokens or for a state.

A page is vLLM's KVCacheSpec: one block of one layer. Layers of a model may have pages of several
kinds; `groups` makes them share one pool. Line of thought and figures: vllm 0.11.0
vllm/v1/kv_cache_interface.py and vllm/model_executor/models/config.py, later versions as marked.

Legend: a token takes `token_bytes` in one layer; a state is of a sequence as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm

from msgspec import Struct
from msgspec.structs import replace

from ...generation.kv_cache import (
    FULL,
    INDEX,
    LATENT,
    STATE,
    WINDOW,
    Row,
    mixer_cache,
    plain_row,
    state_bytes,
)
from ...ledger.num import ceil_div
from ...model.arch import Arch, Layer
from ...model.blocks import Attention, LatentAttention, Mixer, Recurrence, StateSpace
from ...run.run import Run
from ...weights.shards import ServerShard
from .speculative import draft_layers, tokens_ahead
from .versions import v1, version

CHUNK = "chunk"  # attention within chunks of tokens (Llama 4)
GROWING = (FULL, LATENT, INDEX)  # every token stays
BITS = {"bf16": 16, "fp16": 16, "fp32": 32, "fp8": 8}
SCALE_BYTES = 4  # int8 and int4: an fp32 scale for each token and head, key and value
SPARSE_FP8 = 656  # DeepSeek's fp8 layout: 512 fp8, 4 fp32 scales, 64 of 16 bits
# Models that keep a state per block of a prefix (SupportsMambaPrefixCaching).
KEEPS_EVERY_BLOCK = ("bamba", "falcon_h1", "granitemoehybrid", "jamba", "mamba", "mamba2",
                     "nemotron_h", "zamba2")  # fmt: skip
# Models whose scanned state is wider than the rest, and since when: family, version, bits.
WIDE_STATES = (("qwen3_5", (0, 17, 0), 32), ("nemotron_h", (0, 20, 0), 32),
               ("kimi_linear", (0, 11, 0), 32))  # fmt: skip
NO_CHUNK = 2048  # tokens of a chunk where a state-space model has none


class LayerPage(Struct, frozen=True, kw_only=True):
    """One block of one layer. `window` is the chunk where kind is `chunk`."""

    kind: str
    block: int  # tokens
    token_bytes: int = 0
    state_bytes: int = 0
    window: int = 0
    padded: int = 0  # bytes, where the page is made larger than what it holds

    @property
    def bytes(self) -> int:
        """Bytes of the page."""
        return self.padded or (self.state_bytes if self.kind == STATE else
                               self.block * self.token_bytes)  # fmt: skip

    @property
    def sort(self) -> tuple[str, int, int]:
        """Equal for layers that always need the same number of blocks."""
        kind = FULL if self.kind in GROWING else self.kind
        return kind, self.window, self.block


class CacheSlot(Struct, frozen=True):
    """A layer of the model (a draft's come behind) and its page."""

    place: int
    page: LayerPage


def cache_dtype(run: Run) -> str:
    """How keys and values are stored; `auto` is what the checkpoint says, else the model's dtype.

    vllm 0.14.0 vllm/utils/torch_utils.py resolve_kv_cache_dtype_string (modelopt), 0.15.0
    vllm/attention/layer.py (compressed-tensors).
    """
    given = str(run.options["kv_cache_dtype"])
    if given != "auto":
        return given
    own = run.quantized or {}
    method, inner = str(own.get("quant_method", "")), own.get("quantization") or own
    scheme = own.get("kv_cache_scheme") or inner.get("kv_cache_scheme")
    named = inner.get("kv_cache_quant_algo") or own.get("kv_cache_quant_algo")
    if method == "compressed-tensors" and scheme and version(run) >= (0, 15, 0):
        return "fp8"
    if method.startswith("modelopt") and version(run) >= (0, 14, 0):
        fixed = (
            isinstance(scheme, dict) and scheme.get("num_bits") == 8 and not scheme.get("dynamic")
        )
        if fixed or str(named).lower().startswith("fp8"):
            return "fp8"
    return "auto"


def row(run: Run) -> Row:
    """Bytes of one head's key or value."""
    name = cache_dtype(run)
    if name in ("int8", "int4"):
        return lambda elements: elements * (8 if name == "int8" else 4) // 8 + SCALE_BYTES
    if name == "nvfp4":  # vllm 0.20.0 vllm/utils/torch_utils.py nvfp4_kv_cache_full_dim
        return lambda elements: elements // 2 + elements // 16
    return plain_row(BITS[run.precision.partition("_")[0] if name == "auto" else name])


def sparse_row(run: Run) -> Row:
    """DeepSeek-V3.2's latent: its own fp8 layout, but for FlashInfer's kernels on Blackwell.

    vllm 0.11.0 models/config.py DeepseekV32ForCausalLM: fp8 unless asked otherwise; since 0.11.1
    16 bits unless asked otherwise.
    """
    name = cache_dtype(run)
    fp8 = name == "fp8" or (name == "auto" and version(run) < (0, 11, 1))
    flashinfer = version(run) >= (0, 18, 0) and run.compute_capability.startswith("10.")
    return (lambda _: SPARSE_FP8) if fp8 and not flashinfer else row(run)


def latent_bytes(run: Run, mixer: LatentAttention, shard: ServerShard) -> int:
    """One token of latent attention.

    Until 0.7.0 keys and values of every head were kept (vllm 0.6.6 vllm/config.py get_head_size:
    padded to 256), then with other quantizations than fp8 until 0.7.2. 0.7.2 and 0.7.3 align a
    token to 256 bytes (vllm/worker/cache_engine.py).
    """
    now, store = version(run), sparse_row(run) if mixer.index else row(run)
    named = run.options.get("quantization", "none")
    if now < (0, 7, 1) or (now < (0, 7, 3) and named not in ("none", "fp8")):
        size = 256 if now < (0, 7, 0) else mixer.nope_dim + mixer.rope_dim
        return 2 * shard.kv_heads(mixer.heads) * store(size)
    elements = mixer.kv_rank + mixer.rope_dim
    if (0, 7, 2) <= now < (0, 8, 0):
        elements = int(ceil_div(elements * 2, 256)) * 256 // 2
    return store(elements)


def state_bits(run: Run) -> int:
    """Bits of an element of a scanned state."""
    wide = (bits for family, since, bits in WIDE_STATES
            if run.arch.family.startswith(family) and version(run) >= since)  # fmt: skip
    return next(wide, BITS[run.precision.partition("_")[0]])


def widened(run: Run, mixer: Mixer) -> Mixer:
    """A convolution keeps one more input for each token that is guessed ahead."""
    more = tokens_ahead(run)
    if isinstance(mixer, StateSpace) and mixer.version == 2 and version(run) >= (0, 27, 0):
        return replace(mixer, conv=mixer.conv + more)
    if isinstance(mixer, Recurrence) and mixer.kind in ("gated_delta", "delta"):
        return replace(mixer, conv=mixer.conv + more)
    return mixer


def state_mode(run: Run) -> str:
    """Which states are kept with prefix caching: none but the last, one a block, or the last two.

    vllm 0.16.0 models/config.py MambaModelConfig; 0.28.0: always the last two.
    """
    now, every = version(run), run.arch.family in KEEPS_EVERY_BLOCK
    if not run.options.get("enable_prefix_caching") or now < (0, 11, 1):
        return "none"
    if now < (0, 15, 0):
        return "all" if every else "none"
    ahead = (0, 16, 0) <= now < (0, 22, 0) and tokens_ahead(run) > 0
    return "all" if every and not ahead and now < (0, 28, 0) else "align"


def pages(
    run: Run, arch: Arch, layer: Layer, window: int | None, shard: ServerShard
) -> Iterator[LayerPage]:
    """One layer's, before pages are made equal; a block has as many tokens as was asked for."""
    if layer.kind == "encoder":
        return
    block, bits = first_block(run), BITS[run.precision.partition("_")[0]]
    for mixer in layer.mixers:
        for kept in mixer_cache(mixer, window, shard, row(run)):
            size, kind = kept.token_bytes, kept.kind
            if kind == LATENT and isinstance(mixer, LatentAttention):
                size = latent_bytes(run, mixer, shard)
            elif kind == INDEX and isinstance(mixer, Attention | LatentAttention) and mixer.index:
                size = mixer.index.key_dim + mixer.index.key_dim // 128 * 4
            elif kind == WINDOW and arch.family.startswith("llama4"):
                kind = CHUNK
            yield LayerPage(kind=kind, block=block, token_bytes=size, window=kept.window or 0)
        state = state_bytes(widened(run, mixer), shard, state_bits(run), bits)
        if state:
            yield LayerPage(kind=STATE, block=block, state_bytes=state)


def slots(run: Run, shard: ServerShard) -> tuple[CacheSlot, ...]:
    """Every layer of the whole model on the rank's cut, a draft's behind them."""
    arch, found = run.arch, []
    known: dict[tuple[int, int | None], tuple[LayerPage, ...]] = {}  # equal layers are one object
    for place, layer in enumerate(arch.layers):
        key = (id(layer), arch.windows[place] if arch.windows else None)
        if key not in known:
            known[key] = tuple(pages(run, arch, layer, key[1], shard))
        found += [CacheSlot(place, page) for page in known[key]]
    for place, (layer, window) in enumerate(draft_layers(run), len(arch.layers)):
        found += [
            CacheSlot(place, page) for page in pages(run, run.draft or arch, layer, window, shard)
        ]
    if not v1(run):  # states are outside the pool, and windows have blocks for every token
        return tuple(CacheSlot(s.place, replace(s.page, kind=FULL, window=0))
                     for s in found if s.page.kind != STATE)  # fmt: skip
    return matched(run, tuple(found))


def first_block(run: Run) -> int:
    """Tokens of a block before states have a say: what was asked for, or what the kernel takes.

    vllm 0.11.0 vllm/platforms/cuda.py check_and_update_config: FlashMLA 64, CutlassMLA 128; since
    0.18.0 the first size that the kernel supports (vllm/platforms/interface.py).
    """
    mixers = [mixer for layer, _, _ in run.arch.runs for mixer in layer.mixers]
    latent = any(isinstance(mixer, LatentAttention) for mixer in mixers)
    sparse = any(getattr(mixer, "index", None) for mixer in mixers)
    given, now, card = run.options.get("block_size"), version(run), run.compute_capability
    hopper, blackwell = card == "9.0", card.startswith("10.")
    if sparse:
        return 64
    if latent and (0, 8, 0) <= now < (0, 18, 0) and (hopper or blackwell):
        forced = 64 if hopper or now >= (0, 16, 0) else 128 if now >= (0, 9, 2) else 16
        return int(given) if given and given % forced == 0 else forced
    if given:
        return int(given)
    if latent and now >= (0, 18, 0):
        return 32 if blackwell else 64 if hopper and cache_dtype(run) == "fp8" else 16
    return 16


def matched(run: Run, found: tuple[CacheSlot, ...]) -> tuple[CacheSlot, ...]:
    """Blocks of attention are raised until a page holds a state; states are padded to it.

    vllm 0.11.0 models/config.py HybridAttentionMambaModelConfig, 0.27.0 platforms/interface.py
    _align_hybrid_block_size.
    """
    states = [slot.page.state_bytes for slot in found if slot.page.kind == STATE]
    if not states:
        return found
    grows = [slot.page for slot in found if slot.page.kind in GROWING]
    mode, length = state_mode(run), int(run.options["max_seq_len"])
    if not grows:
        block = first_block(run) if mode != "none" else length
        return tuple(CacheSlot(s.place, replace(s.page, block=block)) for s in found)
    token, largest = grows[0].token_bytes, max(states)
    step = _alignment(run, grows[0])
    if mode == "all":
        step = lcm(_chunk(run.arch), step)
    block = max(first_block(run), step * int(ceil_div(int(ceil_div(largest, token)), step)))
    return tuple(
        CacheSlot(slot.place, replace(slot.page, block=length if mode == "none" else block,
                                 padded=block * token)
             if slot.page.kind == STATE else replace(slot.page, block=block))
        for slot in found
    )  # fmt: skip


def _alignment(run: Run, page: LayerPage) -> int:
    """Blocks of attention are multiples of this many tokens."""
    now, latent = version(run), page.kind == LATENT
    if now >= (0, 18, 0):
        return max(first_block(run), 128 if latent and now >= (0, 27, 0) else 1)
    if now < (0, 12, 0):
        return 16
    heads = [m.head_dim for x, _, _ in run.arch.runs for m in x.mixers if isinstance(m, Attention)]
    wide = run.compute_capability.startswith("10.") and 256 in heads
    return 64 if latent else 32 if wide else 16


def _chunk(arch: Arch) -> int:
    """Tokens of a chunk of the scan."""
    chunks = [m.chunk for x, _, _ in arch.runs for m in x.mixers if isinstance(m, StateSpace)]
    return max(chunks, default=0) or NO_CHUNK
