"""The sizes of caches and graphs by which Ollama counts layers before a model is loaded.

Ollama 0.11.0 and v0.20.2 fs/ggml/ggml.go GraphSize, and the releases between. Sizes are bytes.
"""

from __future__ import annotations

from ...ledger.units import MIB
from ...models.arch.arch import Arch
from ...models.arch.blocks import Attention, LatentAttention, StateSpace
from ...run.releases import Version
from .cache import layer_bytes
from .layout import ServerLayout
from .state_space import row_sizes

BY_LAYOUT: Version = (0, 12, 11)  # layers are laid out by size, and states have sizes of their own
SLIDING: Version = (0, 6, 6)  # Gemma 3's layers with a window have cells for the window
# Families whose graphs have a formula, by its name; the others' are a share of the cache.
GRAPHS = dict.fromkeys(("llama", "mistral", "mixtral", "llama4", "plain"), "llama")
GRAPHS |= dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text"), "gemma")
GRAPHS |= dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2"), "deepseek2")
GRAPHS |= {"qwen2": "qwen2", "cohere": "command-r", "phi": "phi2", "chatglm": "chatglm"}
GRAPHS |= {"gpt_oss": "gptoss"}


def _shape(arch: Arch) -> tuple[int, int, int, int]:
    """Heads, key-value heads, and elements of a head's key and value, as a GGUF file of then has
    them: of latent attention those that are unpacked.
    """
    mixer = next(
        (m for layer in arch.layers if isinstance(m := layer.mixer, Attention | LatentAttention)),
        None,
    )
    if isinstance(mixer, LatentAttention):
        return mixer.heads, mixer.heads, mixer.nope_dim + mixer.rope_dim, mixer.value_dim
    if isinstance(mixer, Attention):
        return mixer.heads, mixer.kv_heads, mixer.head_dim, mixer.value_dim or mixer.head_dim
    return 1, 1, 0, 0


def graph_sizes(layout: ServerLayout, release: Version) -> tuple[tuple[int, ...], int, int]:
    """Bytes of each layer's cache, and of a graph where some and where all layers are on GPUs."""
    cache = _cache_sizes(layout, release)
    part, full = _graphs(layout, sum(cache))
    heads, kv_heads, _, _ = _shape(layout.file.arch)
    part = part or heads // kv_heads * sum(cache) // 6
    return tuple(cache), part, full or part


def _cache_sizes(layout: ServerLayout, release: Version) -> list[int]:
    """Bytes of each layer's cache."""
    arch, context, slots = layout.file.arch, layout.context, layout.slots
    _, kv_heads, key, value = _shape(arch)
    batch = min(context, layout.batch)
    each = {"F32": 4.0, "Q8_0": 1.0, "Q4_0": 0.5}.get(layout.keys, 2.0)
    cell, every = int((key + value) * kv_heads * each), range(len(arch.layers))
    if arch.family == "gpt_oss":
        return [cell * (context if i % 2 else slots * 4096 + batch) for i in every]
    if arch.family.startswith("gemma3") and release >= SLIDING:
        window = slots * max((one or 0 for one in arch.windows), default=0) + batch
        return [cell * (window if (i + 1) % 6 else context) for i in every]
    if release < BY_LAYOUT:
        return [cell * context for _ in every]
    return [_layer_cache(layout, i, cell * context) for i in every]


def _layer_cache(layout: ServerLayout, place: int, attention: int) -> int:
    """Bytes of one layer's cache, or of its states."""
    mixer = layout.file.arch.layers[place].mixer
    if isinstance(mixer, Attention | LatentAttention):
        return attention
    if isinstance(mixer, StateSpace):
        return sum(row_sizes(mixer)) * 4
    types = (layout.build, layout.keys, layout.values)
    return layer_bytes(layout.file.arch, place, layout.cells, *types)


def _graphs(layout: ServerLayout, cache: int) -> tuple[int, int]:
    """A graph where some layers are on GPUs, and where all are; 0 for families without a formula.

    `rest` is the last product, `head` the head's weights in 6.5 bits.
    """
    arch, slots = layout.file.arch, layout.slots
    heads, kv_heads, key, _ = _shape(arch)
    context, batch = layout.context, min(layout.context, layout.batch)
    embed, vocab = arch.hidden, arch.vocab
    family, head = GRAPHS.get(arch.family, ""), embed * vocab * 105 // 128
    rest, scores = 4 * batch * (embed + vocab), context * (1 + heads)
    if family == "llama":
        kept = 4 * batch * (1 + embed + max(context, embed)) + embed * embed * 9 // 16
        kept += 4 * context * (batch * heads + embed // heads * kv_heads)
        part = 4 * batch * embed + max(kept, rest + head)
        return part, max(4 * batch * (1 + 4 * embed + scores), rest)
    if family == "gemma":
        wide = 4 * batch * (2 * embed + 2 * key * heads + scores)
        kept = wide + 4 * batch + 32 * key * context + embed * key * heads * 9 // 16
        return max(rest + head, kept), max(rest, wide + 8 * batch)
    if family == "command-r":
        kept = 4 * batch * (1 + 2 * embed + scores) + 4 * embed * context
        part = max(rest + head, kept + embed * embed * 9 // 16)
        return part, max(rest, 4 * batch * (2 + 4 * embed + scores))
    if family == "qwen2":
        full = 4 * batch * (1 + 2 * embed + scores)
        return max(rest + head, full + 4 * embed * (1 + context)), max(rest, full)
    if family == "phi2":
        part = max(rest + 4 * batch * embed + head, 4 * batch * (2 + 3 * embed + scores))
        return part, max(rest, 4 * batch * (1 + 4 * embed + scores))
    if family == "deepseek2":
        wide, scores = 2 * key * kv_heads, context * (1 + kv_heads)
        rest += 8 * batch * embed
        kept = 4 * batch * (2 * embed + 1 + wide + scores) + 4 * key * context * kv_heads
        part = max(rest + head, kept + embed * key * kv_heads * 9 // 16)
        return part, max(rest, 4 * batch * (3 * embed + 2 + wide + scores))
    if family == "chatglm":
        return rest + head, rest
    if family == "gptoss":
        flash = (4 * slots + (context >> 10) + 110) * MIB
        return flash if layout.flash else 2 * heads // kv_heads * cache // 6, 0
    return 0, 0
