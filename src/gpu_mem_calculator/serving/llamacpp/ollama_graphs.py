"""The sizes of caches and graphs by which Ollama counts layers before a model is loaded.

Ollama 0.20.2 fs/ggml/ggml.go GraphSize, and of every release since 0.1.32. Sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from ...ledger.units import MIB
from ...ledger.words import words
from ...models.arch.blocks import Attention, LatentAttention, Recurrence, StateSpace
from ...run.releases import Version
from .layout import ServerLayout
from .ollama_releases import family_of
from .state_space import row_sizes

BY_LAYOUT: Version = (0, 12, 11)  # layers are laid out by size
STATES: Version = (0, 11, 11)  # layers without a cache have states
SLIDING: Version = (0, 6, 3)  # Gemma 3's layers with a window have cells for the window
WITH_LOGITS: Version = (0, 3, 10)  # Llama's whole graph has at least its logits
FIRST: Version = (0, 1, 32)  # before, Ollama had another rule
WITH_EXPERTS: Version = (0, 1, 33)
# gpt-oss: half of the partial graph; one graph for both; flash attention's
HALVED, ONE_GRAPH, FLASH_GRAPH = (0, 11, 3), (0, 11, 5), (0, 11, 8)
# A family's architecture in a GGUF file, for architectures whose graph has a formula.
GRAPHS = {
    **dict.fromkeys(words("llama mistral mixtral plain llama4 llama4_text"), "llama"),
    **dict.fromkeys(words("gemma gemma2 gemma3 gemma3_text"), "gemma"),
    **dict.fromkeys(words("deepseek_v2 deepseek_v3 kimi_k2"), "deepseek2"),
    **dict.fromkeys(words("chatglm glm"), "chatglm"),
    **{"qwen2": "qwen2", "cohere": "command-r", "phi": "phi2", "stablelm": "stablelm"},
    "gpt_oss": "gptoss",
}
# Families whose architecture has none: their graph is a share of the cache.
SHARES = frozenset(
    words("""
    apertus arcee baichuan bamba bloom cohere2 dbrx deepseek dots1 ernie4_5 ernie4_5_moe
    exaone4 falcon falcon_h1 falcon_mamba glm4 glm4_moe glm4_moe_lite gpt2 gpt_bigcode
    gpt_neo gpt_neox gptj granite granitemoe granitemoehybrid granitemoeshared
    hunyuan_v1_dense hunyuan_v1_moe jais2 jamba kimi_linear lfm2 lfm2_moe llada mamba mamba2
    mimo mimo_v2_flash minicpm3 minimax_m2 ministral ministral3 mistral3 mpt nemotron
    nemotron-nas nemotron_h olmo olmo2 olmo3 olmoe opt phi3 phimoe qwen2_5_vl qwen2_moe
    qwen2_vl qwen3 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next
    qwen3_vl qwen3_vl_moe seed_oss smollm3 starcoder2
    """)
)
# The release from which a formula is there; before, the graph was a share as well.
SINCE: dict[str, Version] = {"stablelm": (0, 1, 33), "deepseek2": (0, 1, 45), "chatglm": (0, 2, 2)}
FAMILIES_SINCE: dict[str, Version] = {
    "gemma2": (0, 1, 48),
    **dict.fromkeys(("gemma3", "gemma3_text"), (0, 6, 0)),
    **dict.fromkeys(("llama4", "llama4_text"), (0, 6, 7)),
}


class _Sizes(Struct, frozen=True, kw_only=True):
    """What a formula reads of a model and a server.

    - `heads`, `kv_heads`, `key`, `value`: of a layer's attention, and elements of a head, as a GGUF
      file of then has them: of latent attention those that are unpacked
    - `cache`: of all layers as if each had the whole context
    - `experts`, `ffn`: bytes of the first layer's experts' gates, and their width; 0: it has none
    - `qkv_bias`: elements of the first layer's fused bias
    """

    heads: int
    kv_heads: int
    key: int
    value: int
    embed: int
    vocab: int
    context: int
    batch: int
    slots: int
    cache: int
    experts: int
    ffn: int
    qkv_bias: int
    flash: bool
    release: Version

    @property
    def head(self) -> int:
        """The head's weights in 6.5 bits."""
        return self.embed * self.vocab * 105 // 128

    @property
    def logits(self) -> int:
        """The last product."""
        return 4 * self.batch * (self.embed + self.vocab)

    @property
    def scores(self) -> int:
        """Elements of a token's scores, and of its mask."""
        return self.context * (1 + self.heads)


def graph_sizes(layout: ServerLayout, release: Version) -> tuple[tuple[int, ...], int, int]:
    """Bytes of each layer's cache, and of a graph where some and where all layers are on GPUs."""
    sizes, family = _sizes(layout, release), family_of(layout.file.arch)
    cache = _cache_sizes(layout, sizes)
    formula = None if family in SHARES else GRAPHS[family]
    since = max(SINCE.get(formula or "", FIRST), FAMILIES_SINCE.get(family, FIRST))
    part, full = FORMULAS[formula](sizes) if formula and release >= since else (0, 0)
    part = part or sizes.heads // sizes.kv_heads * sum(cache) // 6
    return tuple(cache), part, full or part


def _sizes(layout: ServerLayout, release: Version) -> _Sizes:
    arch = layout.file.arch
    mixers = [m for layer, _, _ in arch.runs for m in layer.mixers]
    attention = [m for m in mixers if isinstance(m, Attention | LatentAttention)]
    heads = max((m.heads for m in attention), default=1)
    kv_heads = max((getattr(m, "kv_heads", m.heads) for m in attention), default=1)
    first = attention[0] if attention else None
    key = value = 0
    if isinstance(first, LatentAttention):
        key, value = first.nope_dim + first.rope_dim, first.value_dim
    elif first is not None:
        key, value = first.head_dim, first.value_dim or first.head_dim
    named = {tensor.name: tensor for tensor in layout.file.tensors()}
    gates, bias = (named.get(f"blk.0.{name}") for name in ("ffn_gate_exps.weight", "attn_qkv.bias"))
    mlp = arch.layers[0].mlp
    each = {"F32": 4.0, "Q8_0": 1.0, "Q4_0": 0.5}.get(layout.keys, 2.0)
    return _Sizes(
        heads=heads,
        kv_heads=kv_heads,
        key=key,
        value=value,
        embed=arch.hidden,
        vocab=arch.vocab,
        context=layout.context,
        batch=min(layout.context, layout.batch),
        slots=layout.slots,
        cache=int(layout.context * (key + value) * kv_heads * each) * len(arch.layers),
        experts=gates.bytes if gates else 0,
        ffn=mlp.ffn if mlp is not None else 0,
        qkv_bias=bias.elements if bias else 0,
        flash=layout.flash,
        release=release,
    )


def _cache_sizes(layout: ServerLayout, sizes: _Sizes) -> list[int]:
    """Bytes of each layer's cache."""
    arch = layout.file.arch
    whole, every = sizes.cache // len(arch.layers), range(len(arch.layers))
    cell = whole // sizes.context
    if arch.family == "gpt_oss":
        window = cell * (sizes.slots * 4096 + sizes.batch)
        return [whole if i % 2 else window for i in every]
    if arch.family.startswith("gemma3") and sizes.release >= SLIDING:
        widest = max((one or 0 for one in arch.windows), default=0)
        window = cell * (sizes.slots * widest + sizes.batch)
        return [window if (i + 1) % 6 else whole for i in every]
    if sizes.release < STATES:
        return [whole for _ in every]
    # a layer without attention counts as states, also where it is a feed-forward alone
    mixers = [m for layer, _, _ in arch.runs for m in layer.mixers]
    states = next((m for m in mixers if isinstance(m, StateSpace | Recurrence)), None)
    state = sum(row_sizes(states)) * 4 if states else 0
    kinds = (layer.mixer for layer in arch.layers)
    return [whole if isinstance(m, Attention | LatentAttention) else state for m in kinds]


def _llama(s: _Sizes) -> tuple[int, int]:
    kept = 4 * s.batch * (1 + s.embed + max(s.context, s.embed)) + s.embed * s.embed * 9 // 16
    kept += 4 * s.context * (s.batch * s.heads + s.embed // s.heads * s.kv_heads)
    part = 4 * s.batch * s.embed + max(kept, s.logits + s.head)
    full = 4 * s.batch * (1 + 4 * s.embed + s.scores)
    if s.experts and s.release >= WITH_EXPERTS:
        shared = s.embed // s.heads * s.kv_heads
        tokens = 4 * s.batch * (2 * s.ffn + s.kv_heads + s.embed + s.context + shared)
        rows = s.context * s.batch * s.heads + s.context * shared + s.batch * (1024 + shared)
        part = max(3 * s.experts + tokens, 4 * rows)
    return part, max(full, s.logits if s.release >= WITH_LOGITS else 0)


def _gemma(s: _Sizes) -> tuple[int, int]:
    if s.release < FAMILIES_SINCE["gemma2"]:
        return s.logits + 4 * s.batch * (s.embed + 1) + s.head, s.logits
    wide = 4 * s.batch * (2 * s.embed + 2 * s.key * s.heads + s.scores)
    kept = wide + 4 * s.batch + 32 * s.key * s.context + s.embed * s.key * s.heads * 9 // 16
    return max(s.logits + s.head, kept), max(s.logits, wide + 8 * s.batch)


def _command_r(s: _Sizes) -> tuple[int, int]:
    kept = 4 * s.batch * (1 + 2 * s.embed + s.scores) + 4 * s.embed * s.context
    part = max(s.logits + s.head, kept + s.embed * s.embed * 9 // 16)
    return part, max(s.logits, 4 * s.batch * (2 + 4 * s.embed + s.scores))


def _qwen2(s: _Sizes) -> tuple[int, int]:
    full = 4 * s.batch * (1 + 2 * s.embed + s.scores)
    return max(s.logits + s.head, full + 4 * s.embed * (1 + s.context)), max(s.logits, full)


def _phi2(s: _Sizes) -> tuple[int, int]:
    part = s.logits + 4 * s.batch * s.embed + s.head
    if s.release >= (0, 1, 35):
        part = max(part, 4 * s.batch * (2 + 3 * s.embed + s.scores))
    return part, max(s.logits, 4 * s.batch * (1 + 4 * s.embed + s.scores))


def _stablelm(s: _Sizes) -> tuple[int, int]:
    full = 4 * s.batch * (s.scores + 3 * s.embed + 2)
    return max(4 * s.batch * (s.vocab + 2 * s.embed), full), full


def _deepseek2(s: _Sizes) -> tuple[int, int]:
    wide, scores = 2 * s.key * s.kv_heads, s.context * (1 + s.kv_heads)
    logits = s.logits + 8 * s.batch * s.embed
    kept = 4 * s.batch * (2 * s.embed + 1 + wide + scores) + 4 * s.key * s.context * s.kv_heads
    part = max(logits + s.head, kept + s.embed * s.key * s.kv_heads * 9 // 16)
    return part, max(logits, 4 * s.batch * (3 * s.embed + 2 + wide + scores))


def _chatglm(s: _Sizes) -> tuple[int, int]:
    part, full = s.logits + s.head, s.logits
    if s.qkv_bias:
        wide = 2 * s.embed + s.scores + s.key * s.heads
        full = max(full, 4 * s.batch * (2 + wide + s.qkv_bias))
        part = max(part, 4 * s.batch * (1 + wide) + 8 * s.key * s.context + 4 * s.qkv_bias)
    return part, full


def _gptoss(s: _Sizes) -> tuple[int, int]:
    if s.flash and s.release >= FLASH_GRAPH:
        return (4 * s.slots + (s.context >> 10) + 110) * MIB, 0
    if s.release >= ONE_GRAPH:
        return 2 * s.heads // s.kv_heads * s.cache // 6, 0
    full = 4 * s.heads // s.kv_heads * s.cache // 6
    return full if s.release >= HALVED else 2 * full, full


FORMULAS: dict[str, Callable[[_Sizes], tuple[int, int]]] = {
    "llama": _llama,
    "gemma": _gemma,
    "command-r": _command_r,
    "qwen2": _qwen2,
    "phi2": _phi2,
    "stablelm": _stablelm,
    "deepseek2": _deepseek2,
    "chatglm": _chatglm,
    "gptoss": _gptoss,
}
