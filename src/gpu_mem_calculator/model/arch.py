"""A model on one device: every parameter it has, in the blocks it is made of.

Nothing here knows how a model is trained or cut. Dimensions carry names so that an engine can
cut them: `vocab`, `embed`, `heads`, `kv_heads`, `ffn`, `expert`, `expert_ffn`, `state`, `lora`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from msgspec import Struct

from ..ledger.tensor import Dim, Tensor


class Weight(Struct, frozen=True):
    """One parameter: its name inside its block and its named dimensions."""

    name: str
    dims: tuple[Dim, ...]

    @property
    def numel(self) -> int:
        """Elements."""
        count = 1
        for _, size in self.dims:
            count *= size
        return count


class Linear(Struct, frozen=True):
    """y = x Wᵀ + b. `transposed` is GPT-2's Conv1D, which stores W as (in, out)."""

    name: str
    ins: Dim
    outs: Dim
    bias: bool = False
    transposed: bool = False

    def weights(self) -> Iterator[Weight]:
        """The weight, then the bias."""
        dims = (self.ins, self.outs) if self.transposed else (self.outs, self.ins)
        yield Weight(f"{self.name}.weight", dims)
        if self.bias:
            yield Weight(f"{self.name}.bias", (self.outs,))


class Norm(Struct, frozen=True):
    """A normalisation. `impl` names the code that runs, since that decides what is kept:

    - `rms`: x.float(), x * rsqrt(mean(x²)), cast back, times the weight (Llama)
    - `rms_float`: the product with (1 + weight) is in fp32 and cast at the end (Gemma)
    - `layer`: torch's fused layer norm
    - `layer_float`: mean and variance by hand in fp32 (Cohere)
    """

    name: str
    size: Dim
    impl: str = "rms"
    bias: bool = False
    affine: bool = True
    lead: tuple[Dim, ...] = ()  # dimensions of the gain before `size` (Cohere: one row a head)

    def weights(self) -> Iterator[Weight]:
        """The gain, then the bias."""
        if self.affine:
            yield Weight(f"{self.name}.weight", (*self.lead, self.size))
        if self.bias:
            yield Weight(f"{self.name}.bias", (*self.lead, self.size))


class Attention(Struct, frozen=True, kw_only=True):
    """Softmax attention with any ratio of query to key-value heads."""

    inputs: tuple[Linear, ...]  # q, k, v; or one fused projection
    output: Linear
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int = 0  # of one head, where it differs from head_dim
    norms: tuple[Norm, ...] = ()  # on q and k
    rotary_dim: int = 0  # 0: no rotary embedding
    rotary_impl: str = "half"  # half: Llama's rotate_half; interleaved: GPT-J's, Cohere's
    softcap: float | None = None
    alibi: bool = False
    sinks: bool = False  # a learnt logit per head that joins the softmax (gpt-oss)
    dropout: float = 0.0
    extra: tuple[Weight, ...] = ()
    residual_dropout: float = 0.0
    sdpa: bool = True  # False: transformers has no scaled_dot_product_attention path for it
    float_softmax: bool = True  # eager: the softmax is in fp32 and cast back
    float_scores: bool = False  # eager only: q and k are cast to fp32 first (GPT-Neo, GPT-J)

    def weights(self) -> Iterator[Weight]:
        """Projections, norms, the rest."""
        parts: tuple[Linear | Norm, ...] = (*self.inputs, self.output, *self.norms)
        for part in parts:
            yield from part.weights()
        yield from self.extra


class LatentAttention(Struct, frozen=True, kw_only=True):
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
    rotary_impl: str = "interleaved"  # V3; V2: complex, an fp32 complex product

    def weights(self) -> Iterator[Weight]:
        """Query path, key-value path, output."""
        for part in (*self.query, self.query_norm, self.kv_a, self.kv_norm, self.kv_b, self.output):
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
    """A mixture of experts: a router, many small MLPs, and perhaps one that all tokens use."""

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
    all_tokens: bool = False  # every expert runs on every token, scaled by 0 or more (Llama 4)

    def weights(self) -> Iterator[Weight]:
        """Router, experts, shared expert."""
        yield from self.router
        yield from self.experts
        for part in (self.shared, self.shared_gate):
            if part is not None:
                yield from part.weights()


class StateSpace(Struct, frozen=True, kw_only=True):
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
        """As listed."""
        yield from self.parameters


Mixer = Attention | LatentAttention | StateSpace


class Layer(Struct, frozen=True, kw_only=True, dict=True):
    """One block of the stack. Norms are named by where they stand:

    `pre` before the mixer, `post` after it, `pre_mlp` and `post_mlp` likewise. `parallel` means
    that mixer and MLP read the same normed input (GPT-J, Falcon, Cohere).
    """

    kind: str  # what people call it: "dense", "moe", "mamba", "encoder"
    mixer: Mixer | None = None
    mixer_name: str = "self_attn"
    mlp: Mlp | Moe | None = None
    mlp_name: str = "mlp"
    norms: tuple[tuple[str, Norm], ...] = ()
    parallel: bool = False
    dropout: float = 0.0  # on the residual branches
    extra: tuple[Weight, ...] = ()
    fp32_residual: bool = False  # the residual stream is kept in fp32 (Mamba-2)

    def weights(self) -> Iterator[Weight]:
        """Every parameter of the layer, names relative to it."""
        for name, part in ((self.mixer_name, self.mixer), (self.mlp_name, self.mlp)):
            if part is not None:
                prefix = f"{name}." if name else ""
                for weight in part.weights():
                    yield Weight(prefix + weight.name, weight.dims)
        for _, norm in self.norms:
            yield from norm.weights()
        yield from self.extra

    def norm(self, where: str) -> Norm | None:
        """The norm at one place, if the layer has it."""
        return next((norm for place, norm in self.norms if place == where), None)

    @cached_property
    def num_parameters(self) -> int:
        """Elements in the layer."""
        return sum(weight.numel for weight in self.weights())


class Buffer(Struct, frozen=True):
    """A tensor that is kept but not trained (rotary frequencies, causal masks)."""

    name: str
    shape: tuple[int, ...]
    bits: int = 32

    @property
    def num_bytes(self) -> int:
        """Bytes."""
        count = 1
        for size in self.shape:
            count *= size
        return count * self.bits // 8


class Arch(Struct, frozen=True, kw_only=True, dict=True):
    """A whole model: what comes before the stack, the stack, what comes after."""

    family: str
    hidden: int
    vocab: int
    max_seq_len: int
    layers: tuple[Layer, ...]
    layer_prefix: str = "model.layers"
    embedding: tuple[Weight, ...]
    embedding_norm: Norm | None = None
    embedding_dropout: float = 0.0
    final_norm: Norm | None = None
    head: Linear | None = None  # None where the output is the (tied) embedding
    tied: bool = False
    head_extra: tuple[Weight, ...] = ()
    logit_softcap: float | None = None
    windows: tuple[int | None, ...] = ()  # sliding window per layer, None where full
    buffers: tuple[Buffer, ...] = ()
    trains: bool = True  # False: parameters only (encoders), no activations
    mtp_parameters: int = 0  # multi-token-prediction weights that are published beside the model
    layer_names: tuple[str, ...] = ()  # where they are not layer_prefix.index (T5's two stacks)
    logit_scale: float | None = None  # logits are multiplied by it after the head

    def weights(self) -> Iterator[Weight]:
        """Every parameter with its full name, tied ones once."""
        yield from self.embedding
        if self.embedding_norm is not None:
            yield from self.embedding_norm.weights()
        for index, layer in enumerate(self.layers):
            prefix = self.layer_names[index] if self.layer_names else f"{self.layer_prefix}.{index}"
            for weight in layer.weights():
                yield Weight(f"{prefix}.{weight.name}", weight.dims)
        yield from self.after_weights()

    def after_weights(self) -> Iterator[Weight]:
        """What stands behind the stack: final norm, head."""
        if self.final_norm is not None:
            yield from self.final_norm.weights()
        if self.head is not None:
            yield from self.head.weights()
        yield from self.head_extra

    def tensors(self, bits: int) -> Iterator[Tensor]:
        """Every parameter as a tensor of the given width."""
        for weight in self.weights():
            yield Tensor(weight.name, weight.dims, bits)

    @cached_property
    def embedding_parameters(self) -> int:
        """Elements before the stack."""
        norm = self.embedding_norm
        return sum(w.numel for w in self.embedding) + sum(
            w.numel for w in (norm.weights() if norm else ())
        )

    @cached_property
    def after_parameters(self) -> int:
        """Elements behind the stack."""
        return sum(weight.numel for weight in self.after_weights())

    @cached_property
    def num_parameters(self) -> int:
        """Elements in the whole model."""
        stack = sum(layer.num_parameters for layer in self.layers)
        return self.embedding_parameters + stack + self.after_parameters

    @cached_property
    def largest_weight(self) -> int:
        """Most elements in one parameter."""
        stack = (w for layer, _, _ in self.runs for w in layer.weights())
        return max(w.numel for w in (*self.embedding, *stack, *self.after_weights()))

    @cached_property
    def largest_layer_parameters(self) -> int:
        """Most elements that one module owns directly, DeepSpeed's "largest layer"."""
        sizes: dict[str, int] = {}
        seen = {id(layer): layer for layer in self.layers}.values()
        groups = [("", w) for w in (*self.embedding, *self.after_weights())]
        groups += [(f"layer{i}.", w) for i, layer in enumerate(seen) for w in layer.weights()]
        for prefix, weight in groups:
            module = prefix + weight.name.rpartition(".")[0]
            sizes[module] = sizes.get(module, 0) + weight.numel
        return max(sizes.values())

    @cached_property
    def runs(self) -> tuple[tuple[Layer, int, int], ...]:
        """Stretches of equal layers: (layer, first index, count)."""
        found: list[tuple[Layer, int, int]] = []
        for index, layer in enumerate(self.layers):
            if found and (found[-1][0] is layer or found[-1][0] == layer):
                kept, first, count = found[-1]
                found[-1] = (kept, first, count + 1)
            else:
                found.append((layer, index, 1))
        return tuple(found)
