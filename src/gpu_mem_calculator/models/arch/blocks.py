"""The blocks of a model, with every parameter they have.

Nothing here depends on how a model is trained or sharded. Dimensions have names so that an engine
can shard them: `vocab`, `embed`, `heads`, `kv_heads`, `ffn`, `expert`, `expert_ffn`, `router`,
`state`. Every kind of mixer has the properties of `MixerDefaults`, so that callers need not ask
which kind it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from ...ledger.num import N
from ...ledger.rules import Dim


class MixerDefaults(Struct, frozen=True):
    """What every kind of mixer can be asked; each overrides what concerns it with a field."""

    @property
    def rotary_dim(self) -> int:
        """Elements of each attention head with rotary embedding; latent attention: `rope_dim`."""
        return 0

    @property
    def rope_dim(self) -> int:
        """Elements of each head of latent attention with rotary embedding."""
        return 0

    @property
    def rotary_width(self) -> int:
        """Elements of each head with rotary embedding, in any kind of attention."""
        return self.rotary_dim or self.rope_dim

    @property
    def residual_dropout(self) -> float:
        """Rate of the dropout after the output projection."""
        return 0.0

    @property
    def sdpa(self) -> bool:
        """Whether transformers has a scaled_dot_product_attention path, or needs none."""
        return True

    @property
    def always_masked(self) -> bool:
        """Whether a mask is passed with any attention implementation."""
        return False

    @property
    def alibi(self) -> bool:
        """Whether positions are ALiBi's biases."""
        return False

    @property
    def float_bias(self) -> bool:
        """Whether eager attention adds a bias in fp32."""
        return False

    @property
    def cross(self) -> bool:
        """Whether keys and values come from an encoder."""
        return False

    @property
    def index(self) -> Indexer | None:
        """The indexer of sparse attention."""
        return None


NormImpl = Literal[
    "rms", "rms_float", "rms_product", "rms_fused", "layer", "layer_wide", "layer_float"
]
RotaryImpl = Literal["half", "interleaved", "gptj", "joined", "float", "ernie", "complex"]
Scored = Literal["softmax", "softmax_wide", "sigmoid_wide", "top_softmax", "sparsemixer"]
RouterImpl = Scored | Literal["float_softmax", "float_sigmoid"]
Share = tuple[int, int]  # parameter counts of a model: the published one, the architecture's


def in_share(count: N, share: Share | None) -> N:
    """Elements of a parameter, scaled to the published count of the model where there is one."""
    return count if share is None else count * share[0] // share[1]


class Weight(Struct, frozen=True):
    """One parameter: its name inside its block, and its named dimensions."""

    name: str
    dims: tuple[Dim, ...]
    share: Share | None = None

    @property
    def numel(self) -> int:
        """Number of elements."""
        count = 1
        for _, size in self.dims:
            count *= size
        return count if self.share is None else in_share(count, self.share)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dimensions."""
        return tuple(size for _, size in self.dims)


class Linear(Struct, frozen=True):
    """y = x Wᵀ + b. `transposed` is GPT-2's Conv1D, which stores W as (in, out)."""

    name: str
    ins: Dim
    outs: Dim
    bias: bool = False
    transposed: bool = False
    share: Share | None = None

    @property
    def numel(self) -> int:
        """Elements of the weight without the bias."""
        return in_share(self.ins[1] * self.outs[1], self.share)

    @property
    def bias_numel(self) -> int:
        """Elements of the bias; 0 without one."""
        return in_share(self.outs[1], self.share) if self.bias else 0

    def weights(self) -> Iterator[Weight]:
        """The weight, then the bias."""
        dims = (self.ins, self.outs) if self.transposed else (self.outs, self.ins)
        yield Weight(f"{self.name}.weight", dims, self.share)
        if self.bias:
            yield Weight(f"{self.name}.bias", (self.outs,), self.share)


class Norm(Struct, frozen=True):
    """A normalisation. `impl` names the code that runs, which decides what is saved for backward:

    - `rms`: x.float(), x * rsqrt(mean(x²)), cast back, times the weight (Llama)
    - `rms_float`: the product with (1 + weight) is in fp32 and cast at the end (Gemma)
    - `rms_product`: weight and normed fp32 are multiplied and cast in one expression (OLMo 2)
    - `rms_fused`: torch's fused RMS norm (torch.nn.RMSNorm)
    - `layer`: torch's fused layer norm
    - `layer_wide`: the same on an fp32 copy (OLMo)
    - `layer_float`: mean and variance by hand in fp32 (Cohere)
    """

    name: str
    size: Dim
    impl: NormImpl = "rms"
    bias: bool = False
    affine: bool = True
    lead: tuple[Dim, ...] = ()  # dimensions of the gain before `size` (Cohere: a row per head)
    share: Share | None = None

    def weights(self) -> Iterator[Weight]:
        """The gain, then the bias."""
        if self.affine:
            yield Weight(f"{self.name}.weight", (*self.lead, self.size), self.share)
        if self.bias:
            yield Weight(f"{self.name}.bias", (*self.lead, self.size), self.share)


class Indexer(Struct, frozen=True, kw_only=True):
    """Picks the tokens that sparse attention reads; it caches one small key per token."""

    parameters: tuple[Weight, ...]
    key_dim: int
    heads: int = 0

    def weights(self) -> Iterator[Weight]:
        """Its parameters, in order."""
        yield from self.parameters


class Attention(MixerDefaults, frozen=True, kw_only=True):
    """Softmax attention with any ratio of query heads to key-value heads."""

    inputs: tuple[Linear, ...]  # q, k, v; or one fused projection
    output: Linear
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int = 0  # of one head, where it differs from head_dim
    norms: tuple[Norm, ...] = ()  # on q and k
    rotary_dim: int = 0  # 0: no rotary embedding
    rotary_impl: RotaryImpl = "half"
    softcap: float | None = None
    alibi: bool = False
    sinks: bool = False  # a learnt logit per head that joins the softmax (gpt-oss)
    dropout: float = 0.0
    extra: tuple[Weight, ...] = ()
    residual_dropout: float = 0.0
    sdpa: bool = True  # False: transformers has no scaled_dot_product_attention path for it
    float_softmax: bool = True  # eager: the softmax is in fp32 and cast back
    float_scores: bool = False  # eager only: q and k are cast to fp32 first (GPT-Neo, GPT-J)
    expanded: bool = False  # k and v are copied for every query head before rotary (Falcon-40B)
    float_bias: bool = False  # eager: ALiBi's bias is in fp32, and so are the scores after it (MPT)
    always_masked: bool = False  # a mask is passed in any case, and `enable_gqa` is not
    clipped: bool = False  # q, k and v are clamped (`clip_qkv`)
    cross: bool = False  # keys and values come from an encoder, once per sequence
    reuses: bool = False  # reads the keys and values that an earlier layer keeps (Gemma 3n)
    borrowed: bool = False  # it shares the weights of an earlier layer (Zamba)
    index: Indexer | None = None

    def weights(self) -> Iterator[Weight]:
        """Projections, norms, all others; none where they are an earlier layer's."""
        if self.borrowed:
            return
        parts: tuple[Linear | Norm, ...] = (*self.inputs, self.output, *self.norms)
        for part in parts:
            yield from part.weights()
        yield from self.extra
        if self.index is not None:
            yield from self.index.weights()


class LatentAttention(MixerDefaults, frozen=True, kw_only=True):
    """Multi-head latent attention (DeepSeek-V2): keys and values from one small latent."""

    query: tuple[Linear, ...]  # (q,) or (q_a, q_b)
    query_norm: Norm | None
    kv_a: Linear
    kv_norm: Norm
    kv_b: Linear
    output: Linear
    heads: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    kv_rank: int
    query_rank: int = 0
    dropout: float = 0.0
    rotary_impl: RotaryImpl = "interleaved"  # V3; V2: complex, an fp32 complex product
    index: Indexer | None = None  # DeepSeek-V3.2
    chosen: int = 0  # most tokens that are read, where an indexer picks them

    def weights(self) -> Iterator[Weight]:
        """Query path, key-value path, output, indexer."""
        keys = (self.kv_a, self.kv_norm, self.kv_b)
        for part in (*self.query, self.query_norm, *keys, self.output, self.index):
            if part is not None:
                yield from part.weights()


class Mlp(Struct, frozen=True, kw_only=True):
    """A feed-forward block: down(act(up x)) or down(act(gate x) · up x)."""

    inputs: tuple[Linear, ...]  # up; gate, up; or one fused gate_up
    output: Linear
    ffn: int
    gated: bool
    activation: str = "silu"
    dropout: float = 0.0

    def weights(self) -> Iterator[Weight]:
        """Input projections, then the output."""
        for part in (*self.inputs, self.output):
            yield from part.weights()


class Moe(Struct, frozen=True, kw_only=True):
    """A mixture of experts: a router, many small MLPs, and perhaps a shared one for all tokens."""

    router: tuple[Weight, ...]
    experts: tuple[Weight, ...]  # every expert's weights; stacked ones lead with ("expert", n)
    num_experts: int
    top_k: int
    ffn: int
    gated: bool = True
    activation: str = "silu"
    shared: Mlp | None = None
    shared_gate: Linear | None = None
    jitter: bool = False
    router_impl: RouterImpl = "softmax"
    all_tokens: bool = False  # every expert runs on every token, scaled by 0 or more (Llama 4)

    def weights(self) -> Iterator[Weight]:
        """Router, experts, shared expert."""
        yield from self.router
        yield from self.experts
        for part in (self.shared, self.shared_gate):
            if part is not None:
                yield from part.weights()


class StateSpace(MixerDefaults, frozen=True, kw_only=True):
    """A Mamba or Mamba-2 mixer."""

    version: int
    inner: int
    state: int
    heads: int
    groups: int
    conv: int
    parameters: tuple[Weight, ...]
    dt_rank: int = 0  # Mamba-1: width of the low-rank time step
    chunk: int = 0  # Mamba-2: tokens per chunk of the scan

    def weights(self) -> Iterator[Weight]:
        """Its parameters, in order."""
        yield from self.parameters


class Recurrence(MixerDefaults, frozen=True, kw_only=True):
    """A mixer other than Mamba with a recurrent state of fixed size.

    The state is `heads` matrices of `key_dim` x `value_dim`; a causal convolution over `channels`
    keeps the last `conv` - 1 inputs. `kind`:

    - `gated_delta`: Gated DeltaNet (Qwen3-Next); `delta`: Kimi Delta Attention
    - `lightning`: MiniMax's linear attention
    - `short_conv`: LFM2's convolution, which has no other state
    - `lru`: RecurrentGemma's gated linear recurrence
    """

    kind: str
    parameters: tuple[Weight, ...]
    heads: int = 0
    key_heads: int = 0  # heads of q and k, where they are fewer
    key_dim: int = 0
    value_dim: int = 0
    channels: int = 0
    conv: int = 1

    def weights(self) -> Iterator[Weight]:
        """Its parameters, in order."""
        yield from self.parameters

    @property
    def state_elements(self) -> int:
        """Elements of the state of one sequence."""
        return self.heads * self.key_dim * self.value_dim

    @property
    def conv_elements(self) -> int:
        """Elements of the convolution's inputs that one sequence keeps."""
        return self.channels * (self.conv - 1)


Mixer = Attention | LatentAttention | StateSpace | Recurrence
