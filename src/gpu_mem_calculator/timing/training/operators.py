"""The matmuls and attention calls of a layer and of the head, with the sizes of one rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from ...ledger.num import Num, ceil_div, larger, smaller
from ...ledger.remember import remembered
from ...models.arch.adapters import adapted_linears
from ...models.arch.arch import Arch, Layer
from ...models.arch.blocks import Attention, LatentAttention, Linear, Mlp, Moe
from ...run.run import Run
from ...training.engines import engine_row
from ...training.engines.megatron_lm.options import expert_tp
from ...training.engines.megatron_lm.shards import local_vocab
from .tapes import megatron_setting

SHARDED = ("vocab", "heads", "kv_heads", "ffn", "expert_ffn")  # dimensions that tp shards
ATTENTION, CORE, MLP, EXPERTS, HEAD = "attention", "core", "mlp", "experts", "head"

ALIGNED = 8  # 16-bit elements of 16 bytes, where cuBLAS lets tensor cores load a matrix


class Matmul(Struct, frozen=True, kw_only=True):
    """Equal products of an m x k with a k x n matrix, in forward.

    - count: how many there are
    - part: of the layer, by which recompute chooses
    - weight: one factor is a weight; trained: and takes a gradient
    - last: nothing that backward needs comes after it
    - unaligned: matrices of a batch begin at addresses that are no multiples of 16 bytes
    """

    m: Num
    n: Num
    k: Num
    count: Num = 1
    part: str
    weight: bool = True
    trained: bool = True
    last: bool = False
    unaligned: bool = False


class AttentionCall(Struct, frozen=True, kw_only=True):
    """Equal calls of an attention kernel that does not store the scores.

    - count: how many there are; a fraction of one that ranks of context parallelism share
    """

    batch: Num
    heads: Num
    kv_heads: Num
    head_dim: int
    queries: Num
    keys: Num
    count: Any = 1


class EqualLayers(Struct, frozen=True):
    """Equal layers with equal windows; `before[i]`: how many of them the first i layers have."""

    layer: Layer
    window: int | None
    before: tuple[int, ...]

    @property
    def count(self) -> int:
        """Layers of this kind in the model."""
        return self.before[-1]


@remembered(32)
def layer_kinds(arch: Arch) -> tuple[EqualLayers, ...]:
    """The distinct layers of a model."""
    windows = arch.windows or (None,) * len(arch.layers)
    kinds: dict[tuple[int, int | None], Layer] = {}
    keys = []
    for layer, window in zip(arch.layers, windows, strict=True):
        known = next((k for k, one in kinds.items() if k[1] == window and one == layer), None)
        key = known or (id(layer), window)
        kinds.setdefault(key, layer)
        keys.append(key)
    return tuple(
        EqualLayers(layer, key[1], _counts([other == key for other in keys]))
        for key, layer in kinds.items()
    )


def _counts(flags: list[bool]) -> tuple[int, ...]:
    totals = [0]
    for flag in flags:
        totals.append(totals[-1] + flag)
    return tuple(totals)


def tokens_of(run: Run) -> Num:
    """Tokens of a micro-batch on one rank, inside attention and MLP."""
    return run.batch * (run.seq // run.mesh.cp)


def local_tokens(run: Run) -> Num:
    """Tokens between attention and MLP, which sequence parallelism shards."""
    tokens = tokens_of(run)
    return tokens // run.mesh.tp if run.sequence_parallel else tokens


def layer_matmuls(run: Run, engine: str, layer: Layer) -> Iterator[Matmul]:
    """The matmuls of one layer by weights; those of core attention are `score_matmuls`."""
    joined = engine_row(engine).megatron
    for mixer in layer.mixers:
        if isinstance(mixer, Attention):
            yield from _linears(run, mixer.inputs, ATTENTION, joined=joined)
            yield from _linears(run, (mixer.output,), ATTENTION)
        elif isinstance(mixer, LatentAttention):
            linears = (*mixer.query, mixer.kv_a, mixer.kv_b, mixer.output)
            yield from _linears(run, linears, ATTENTION)
        else:
            for weight in mixer.weights():
                if len(weight.dims) == 2:
                    outs, ins = weight.shape
                    yield _matmul(run, local_tokens(run), outs, ins, ATTENTION)
    if isinstance(layer.mlp, Mlp):
        yield from _mlp(run, layer.mlp, joined=joined)
    elif isinstance(layer.mlp, Moe):
        yield from _moe(run, engine, layer.mlp)
    yield from _adapters(run, layer)


def _matmul(
    run: Run, m: Num, n: Num, k: Num, part: str, *, count: Num = 1, last: bool = False
) -> Matmul:
    return Matmul(m=m, n=n, k=k, part=part, count=count, last=last, trained=not run.frozen)


def _mlp(run: Run, block: Mlp, *, joined: bool) -> Iterator[Matmul]:
    yield from _linears(run, block.inputs, MLP, joined=joined)
    yield from _linears(run, (block.output,), MLP, last=True)


def _linears(
    run: Run, linears: tuple[Linear, ...], part: str, *, joined: bool = False, last: bool = False
) -> Iterator[Matmul]:
    """One matmul for each projection, or one for all of them (`joined`)."""
    columns: Num = 0
    for linear in linears:
        outs, ins = _shard(run, linear.outs), _shard(run, linear.ins)
        columns = columns + outs
        sharded = linear.outs[0] in SHARDED or linear.ins[0] in SHARDED
        tokens = tokens_of(run) if sharded else local_tokens(run)
        if not joined:
            yield _matmul(run, tokens, outs, ins, part, last=last)
    if joined:
        yield _matmul(run, tokens_of(run), columns, linears[0].ins[1], part, last=last)


def _shard(run: Run, dim: tuple[str, int]) -> Num:
    """One rank's part of a dimension."""
    return ceil_div(dim[1], run.mesh.tp) if dim[0] in SHARDED else dim[1]


def _moe(run: Run, engine: str, block: Moe) -> Iterator[Matmul]:
    """Router, experts with an even share of the tokens each, shared expert."""
    joined = engine_row(engine).megatron
    etp = expert_tp(run) if joined else 1
    local = block.num_experts // run.mesh.ep
    rows = larger(local_tokens(run) * block.top_k * etp // local, 1)
    if block.all_tokens:
        rows = local_tokens(run) * etp * run.mesh.ep
    ffn = block.ffn // etp
    yield _matmul(run, local_tokens(run), block.num_experts, run.arch.hidden, MLP)
    widths = (ffn * 2,) if block.gated else (ffn,)
    for width in widths:
        yield _matmul(run, rows, width, run.arch.hidden, EXPERTS, count=local)
    yield _matmul(run, rows, run.arch.hidden, ffn, EXPERTS, count=local)
    if block.shared is not None:
        yield from _mlp(run, block.shared, joined=joined)


def _adapters(run: Run, layer: Layer) -> Iterator[Matmul]:
    """LoRA's two matmuls beside each adapted projection, which are trained."""
    if run.adapter is None:
        return
    rank, tokens = run.adapter.rank, tokens_of(run)
    for linear in adapted_linears(layer, run.adapter.targets):
        yield Matmul(m=tokens, n=rank, k=linear.ins[1], part=ATTENTION)
        yield Matmul(m=tokens, n=linear.outs[1], k=rank, part=ATTENTION)


def stores_scores(run: Run, engine: str) -> bool:
    """Whether attention stores its scores: batched matmuls around a softmax."""
    if engine_row(engine).megatron:
        setting = megatron_setting(run, engine)
        return not (setting.transformer_engine and setting.fused_attention and setting.bits == 16)
    return run.attention == "eager"


def attention_calls(run: Run, kind: EqualLayers) -> Iterator[AttentionCall]:
    """The attention kernels of one layer.

    A ring of context parallelism runs one for each rank's keys: the rank's own causally, of the
    others half of the pairs (Transformer Engine 2.18 attention/context_parallel.py).
    """
    pieces: Any = run.mesh.cp
    for mixer in kind.layer.mixers:
        if not isinstance(mixer, Attention | LatentAttention):
            continue
        if isinstance(mixer, LatentAttention):
            groups, size = mixer.heads, mixer.nope_dim + mixer.rope_dim
        else:
            groups, size = mixer.kv_heads, mixer.head_dim
        keys = run.seq if kind.window is None else smaller(run.seq, kind.window)
        yield AttentionCall(
            batch=run.batch,
            heads=ceil_div(mixer.heads, run.mesh.tp),
            kv_heads=ceil_div(groups, run.mesh.tp),
            head_dim=size,
            queries=run.seq // pieces if kind.window is None else run.seq,
            keys=keys // pieces if kind.window is None else keys,
            count=pieces if kind.window is None else 1 / pieces,
        )


def score_matmuls(run: Run, kind: EqualLayers) -> Iterator[Matmul]:
    """q kᵀ and probabilities times v, for every sequence and attention head, as one tall matmul:
    a batch of them reads and writes the same bytes.
    """
    for call in attention_calls(run, kind):
        rows = call.batch * call.heads * (run.seq // run.mesh.cp)
        for n, k in ((run.seq, call.head_dim), (call.head_dim, run.seq)):
            unaligned = call.head_dim % ALIGNED > 0
            yield Matmul(m=rows, n=n, k=k, part=CORE, weight=False, unaligned=unaligned)


def head_matmul(run: Run, engine: str) -> Matmul:
    """The output layer."""
    vocab = local_vocab(run) if engine_row(engine).megatron else run.arch.vocab
    tokens = tokens_of(run)
    return Matmul(m=tokens, n=vocab, k=run.arch.hidden, part=HEAD, trained=not run.frozen)
