"""Cache pages of each layer: one page for a block of tokens, or for a recurrent state.

A page is vLLM's KVCacheSpec: one block of one layer. Layers of a model may have pages of several
kinds; `cache_groups` makes them share one pool. vllm 0.11.0 vllm/v1/kv_cache_interface.py and
vllm/model_executor/models/config.py, later versions as marked.

Legend: a token takes `token_bytes` in one layer; a state belongs to a sequence as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.num import ceil_div
from ...ledger.source import code
from ...ledger.words import words
from ...models.arch.arch import Arch, Layer
from ...models.arch.blocks import Attention, LatentAttention, Mixer, Recurrence, StateSpace
from ...run.run import Run
from ...run.weights.shards import ServerShard
from ...training.generation.kv_cache import (
    FULL,
    INDEX,
    LATENT,
    STATE,
    WINDOW,
    RowBytes,
    mixer_cache,
    state_bytes,
    unscaled_row,
)
from .speculative import draft_layers, tokens_ahead
from .versions import v1, version

BITS = {"bf16": 16, "fp16": 16, "fp32": 32, "fp8": 8}
SCALE_BYTES = 4  # int8 and int4: an fp32 scale for each token and head, key and value
SPARSE_FP8 = 656  # DeepSeek's fp8 layout: 512 fp8, 4 fp32 scales, 64 of 16 bits
# Models whose scanned state is in fp32 whatever the weights are in, by first version.
WIDE_STATES = {"qwen3_5": (0, 17, 0), "nemotron_h": (0, 20, 0), "kimi_linear": (0, 11, 0)}


def cache_dtype(run: Run) -> str:
    """The type of keys and values; `auto`: the checkpoint's, otherwise the model's dtype.

    vllm 0.14.0 vllm/utils/torch_utils.py resolve_kv_cache_dtype_string (modelopt), 0.15.0
    vllm/attention/layer.py (compressed-tensors).
    """
    dtype = str(run.options["kv_cache_dtype"])
    if dtype != "auto":
        return dtype
    config = run.quantized or {}
    method, inner = str(config.get("quant_method", "")), config.get("quantization") or config
    scheme = config.get("kv_cache_scheme") or inner.get("kv_cache_scheme")
    algorithm = inner.get("kv_cache_quant_algo") or config.get("kv_cache_quant_algo")
    if method == "compressed-tensors" and scheme and version(run) >= (0, 15, 0):
        return "fp8"
    if method.startswith("modelopt") and version(run) >= (0, 14, 0):
        read = scheme if isinstance(scheme, dict) else {}
        static_fp8 = read.get("num_bits") == 8 and not read.get("dynamic")
        if static_fp8 or str(algorithm).lower().startswith("fp8"):
            return "fp8"
    return "auto"


def cache_row(run: Run) -> RowBytes:
    """Function from elements of one head's key or value to bytes."""
    name = cache_dtype(run)
    if name in ("int8", "int4"):
        return lambda elements: elements * (8 if name == "int8" else 4) // 8 + SCALE_BYTES
    if name == "nvfp4":  # vllm 0.20.0 vllm/utils/torch_utils.py nvfp4_kv_cache_full_dim
        return lambda elements: elements // 2 + elements // 16
    return unscaled_row(BITS[run.precision.partition("_")[0] if name == "auto" else name])


def sparse_row(run: Run) -> RowBytes:
    """DeepSeek-V3.2's latent: a special fp8 layout, except for FlashInfer's kernels on Blackwell.

    vllm 0.11.0 models/config.py DeepseekV32ForCausalLM: fp8 by default; since 0.11.1 16 bits by
    default.
    """
    name = cache_dtype(run)
    fp8 = name == "fp8" or (name == "auto" and version(run) < (0, 11, 1))
    flashinfer = version(run) >= (0, 18, 0) and run.compute_capability.startswith("10.")
    return (lambda _: SPARSE_FP8) if fp8 and not flashinfer else cache_row(run)


def latent_bytes(run: Run, mixer: LatentAttention, shard: ServerShard) -> int:
    """Bytes of one token of latent attention.

    Until 0.7.0 keys and values of every head were kept (vllm 0.6.6 vllm/config.py get_head_size:
    padded to 256), then with other quantizations than fp8 until 0.7.2. 0.7.2 and 0.7.3 align a
    token to 256 bytes (vllm/worker/cache_engine.py).
    """
    vllm_version, row = version(run), sparse_row(run) if mixer.index else cache_row(run)
    quantization = run.options.get("quantization", "none")
    unpacked = vllm_version < (0, 7, 3) and quantization not in ("none", "fp8")
    if vllm_version < (0, 7, 1) or unpacked:
        size = 256 if vllm_version < (0, 7, 0) else mixer.nope_dim + mixer.rope_dim
        return 2 * shard.kv_heads(mixer.heads) * row(size)
    elements = mixer.kv_rank + mixer.rope_dim
    if (0, 7, 2) <= vllm_version < (0, 8, 0):
        elements = int(ceil_div(elements * 2, 256)) * 256 // 2
    return row(elements)


def state_bits(run: Run) -> int:
    """Bits of an element of a scanned state."""
    for family, since in WIDE_STATES.items():
        if run.arch.family.startswith(family) and version(run) >= since:
            return 32
    return BITS[run.precision.partition("_")[0]]


def with_draft_inputs(run: Run, mixer: Mixer) -> Mixer:
    """The mixer with one more convolution input for each draft token."""
    drafts = tokens_ahead(run)
    if isinstance(mixer, StateSpace) and mixer.version == 2 and version(run) >= (0, 27, 0):
        return replace(mixer, conv=mixer.conv + drafts)
    if isinstance(mixer, Recurrence) and mixer.kind in ("gated_delta", "delta"):
        return replace(mixer, conv=mixer.conv + drafts)
    return mixer


CHECKPOINTS_FROM, CHECKPOINT_TOKENS = (0, 33, 0), 64
CHECKPOINTS = code(
    "vllm 0.33.0 vllm/model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py "
    "_resolve_gdn_prefill_backend, _checkpoint_buffer_spec; vllm/platforms/interface.py "
    "_align_hybrid_block_size"
)
CHUNK = "chunk"  # attention within chunks of tokens (Llama 4)
GROWING = (FULL, LATENT, INDEX)  # they keep every token
# Models that keep a state for each block of a prefix (SupportsMambaPrefixCaching).
KEEPS_EVERY_BLOCK = words("bamba falcon_h1 granitemoehybrid jamba mamba mamba2 nemotron_h zamba2")
NO_CHUNK = 2048  # tokens of a chunk if a state-space model sets none


class LayerPage(Struct, frozen=True, kw_only=True):
    """One block of one layer.

    - `kind`: full, window, chunk, latent, index, cross or state
    - `block`: tokens of the block
    - `token_bytes`: bytes of a token; `state_bytes`: bytes of a state
    - `window`: tokens of the window, or of the chunk
    - `padded`: bytes of the page if it is padded, otherwise 0
    """

    kind: str
    block: int
    token_bytes: int = 0
    state_bytes: int = 0
    window: int = 0
    padded: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of the page, with padding."""
        own = self.state_bytes if self.kind == STATE else self.block * self.token_bytes
        return self.padded or own

    @property
    def block_key(self) -> tuple[str, int, int]:
        """Kind, window and block: equal for layers that always need the same number of blocks."""
        kind = FULL if self.kind in GROWING else self.kind
        return kind, self.window, self.block


class CacheSlot(Struct, frozen=True):
    """A layer's position (a draft's layers follow the model's) and its page."""

    place: int
    page: LayerPage

    def changed(self, **fields: Any) -> CacheSlot:
        """The slot with other fields of its page."""
        return CacheSlot(self.place, replace(self.page, **fields))


def state_mode(run: Run) -> str:
    """States kept for prefix caching: `none` the last, `all` one per block, `align` the last two.

    vllm 0.16.0 models/config.py MambaModelConfig; 0.28.0: always the last two.
    """
    vllm_version, every_block = version(run), run.arch.family in KEEPS_EVERY_BLOCK
    if not run.options.get("enable_prefix_caching") or vllm_version < (0, 11, 1):
        return "none"
    if vllm_version < (0, 15, 0):
        return "all" if every_block else "none"
    drafting = (0, 16, 0) <= vllm_version < (0, 22, 0) and tokens_ahead(run) > 0
    return "all" if every_block and not drafting and vllm_version < (0, 28, 0) else "align"


def checkpointed(run: Run) -> tuple[Recurrence, ...]:
    """The mixers whose states inside a prompt are kept at the ends of blocks: all that have a state
    are of Gated DeltaNet, and FlashInfer runs their prefill.
    """
    chip, found = run.compute_capability, [m for x, _, _ in run.arch.runs for m in x.mixers]
    states = [m for m in found if isinstance(m, Recurrence | StateSpace)]
    gated = tuple(m for m in states if isinstance(m, Recurrence) and m.kind == "gated_delta")
    runs = chip == "9.0" or (
        chip.partition(".")[0] in ("10", "12") and all(mixer.key_dim == 128 for mixer in gated)
    )
    kept = version(run) >= CHECKPOINTS_FROM and state_mode(run) == "align"
    return gated if runs and kept and len(gated) == len(states) else ()


def layer_pages(
    run: Run, arch: Arch, layer: Layer, window: int | None, shard: ServerShard
) -> Iterator[LayerPage]:
    """Pages of one layer before sizes are unified, with blocks of `base_block_size` tokens."""
    if layer.kind == "encoder":
        return
    block, bits = base_block_size(run), BITS[run.precision.partition("_")[0]]
    for mixer in layer.mixers:
        for entry in mixer_cache(mixer, window, shard, cache_row(run)):
            size, kind = entry.token_bytes, entry.kind
            if kind == LATENT and isinstance(mixer, LatentAttention):
                size = latent_bytes(run, mixer, shard)
            elif kind == INDEX and isinstance(mixer, Attention | LatentAttention) and mixer.index:
                size = mixer.index.key_dim + mixer.index.key_dim // 128 * 4
            elif kind == WINDOW and arch.family.startswith("llama4"):
                kind = CHUNK
            yield LayerPage(kind=kind, block=block, token_bytes=size, window=entry.window or 0)
        state = state_bytes(with_draft_inputs(run, mixer), shard, state_bits(run), bits)
        if state:
            yield LayerPage(kind=STATE, block=block, state_bytes=state)


def cache_slots(run: Run, shard: ServerShard) -> tuple[CacheSlot, ...]:
    """Pages of every layer of the whole model with the rank's shard, then the draft's."""
    arch, slots = run.arch, []
    known_pages: dict[object, tuple[LayerPage, ...]] = {}  # equal layers are one object
    for place, layer in enumerate(arch.layers):
        key = (id(layer), arch.windows[place] if arch.windows else None)
        if key not in known_pages:
            known_pages[key] = tuple(layer_pages(run, arch, layer, key[1], shard))
        slots += [CacheSlot(place, page) for page in known_pages[key]]
    for place, (layer, window) in enumerate(draft_layers(run), len(arch.layers)):
        pages = layer_pages(run, run.draft or arch, layer, window, shard)
        slots += [CacheSlot(place, page) for page in pages]
    if not v1(run):  # states are outside the pool; windows keep blocks for every token
        kept = (slot for slot in slots if slot.page.kind != STATE)
        return tuple(slot.changed(kind=FULL, window=0) for slot in kept)
    return match_states(run, tuple(slots))


def base_block_size(run: Run) -> int:
    """Tokens of a block before it is adapted to states: `block_size`, or the kernel's default.

    vllm 0.11.0 vllm/platforms/cuda.py check_and_update_config: FlashMLA 64, CutlassMLA 128; since
    0.18.0 the first size that the kernel supports (vllm/platforms/interface.py).
    """
    mixers = [mixer for layer, _, _ in run.arch.runs for mixer in layer.mixers]
    latent = any(isinstance(mixer, LatentAttention) for mixer in mixers)
    sparse = any(mixer.index for mixer in mixers)
    requested, vllm_version = run.options.get("block_size"), version(run)
    capability = run.compute_capability
    hopper, blackwell = capability == "9.0", capability.startswith("10.")
    if sparse:
        return 64
    if latent and (0, 8, 0) <= vllm_version < (0, 18, 0) and (hopper or blackwell):
        earlier = 128 if vllm_version >= (0, 9, 2) else 16
        kernel_block = 64 if hopper or vllm_version >= (0, 16, 0) else earlier
        return int(requested) if requested and requested % kernel_block == 0 else kernel_block
    if requested:
        return int(requested)
    if latent and vllm_version >= (0, 18, 0):
        return 32 if blackwell else 64 if hopper and cache_dtype(run) == "fp8" else 16
    return 16


def match_states(run: Run, slots: tuple[CacheSlot, ...]) -> tuple[CacheSlot, ...]:
    """Attention blocks grow until a page holds a state; states are padded to that page.

    vllm 0.11.0 models/config.py HybridAttentionMambaModelConfig, 0.27.0 platforms/interface.py
    _align_hybrid_block_size.
    """
    states = [slot.page.state_bytes for slot in slots if slot.page.kind == STATE]
    if not states:
        return slots
    growing = [slot.page for slot in slots if slot.page.kind in GROWING]
    mode, length = state_mode(run), int(run.options["max_seq_len"])
    if not growing:
        block = base_block_size(run) if mode != "none" else length
        return tuple(slot.changed(block=block) for slot in slots)
    token, largest = growing[0].token_bytes, max(states)
    step = _alignment(run, growing[0])
    if mode == "all":
        step = lcm(_scan_chunk(run.arch), step)
    block = max(base_block_size(run), step * int(ceil_div(int(ceil_div(largest, token)), step)))
    state_block = length if mode == "none" else block
    sizes = {STATE: {"block": state_block, "padded": block * token}}
    return tuple(slot.changed(**sizes.get(slot.page.kind, {"block": block})) for slot in slots)


def _alignment(run: Run, page: LayerPage) -> int:
    """Blocks of attention are multiples of this many tokens."""
    vllm_version, latent = version(run), page.kind == LATENT
    if vllm_version >= (0, 18, 0):
        least = max(base_block_size(run), 128 if latent and vllm_version >= (0, 27, 0) else 1)
        return lcm(least, CHECKPOINT_TOKENS) if checkpointed(run) else least
    if vllm_version < (0, 12, 0):
        return 16
    mixers = [mixer for layer, _, _ in run.arch.runs for mixer in layer.mixers]
    head_dims = [mixer.head_dim for mixer in mixers if isinstance(mixer, Attention)]
    wide_heads = run.compute_capability.startswith("10.") and 256 in head_dims
    return 64 if latent else 32 if wide_heads else 16


def _scan_chunk(arch: Arch) -> int:
    """Tokens of a chunk of the scan."""
    chunks = [m.chunk for x, _, _ in arch.runs for m in x.mixers if isinstance(m, StateSpace)]
    return max(chunks, default=0) or NO_CHUNK
