"""The model that DeepSpeed trains on one rank: Megatron's shards, as if they were a whole model.

Parameters are in the order in which modules register them, and modules in the order of their
calls: deepspeedai/Megatron-DeepSpeed 6acc370a, megatron/model/transformer.py:908-1000 and
language_model.py:140-190.
"""

from __future__ import annotations

from functools import partial
from typing import cast

from msgspec.structs import replace

from ....ledger.mesh import Mesh
from ....models.arch.arch import Arch, Layer
from ....models.arch.blocks import Attention, Linear, Mlp, Norm, Share, Weight
from ....models.arch.scaling import with_share
from ....run.run import Run
from ..megatron_lm.shards import local_vocab

ModuleSizes = tuple[int, ...]


def rank_run(run: Run) -> Run:
    """The run as DeepSpeed sees it: this rank's shards, on a mesh of dp and pp only."""
    return replace(run, arch=rank_arch(run), mesh=Mesh(dp=run.mesh.dp, pp=run.mesh.pp))


def rank_arch(run: Run) -> Arch:
    """This rank's shards of the embedding, of every layer, of the final norm and the head."""
    arch, shards = run.arch, dict[int, Layer]()
    for layer in arch.layers:
        if id(layer) not in shards:
            shards[id(layer)] = rank_layer(run, layer)
    vocab = cast(int, local_vocab(run))  # a model's sizes are typed as ints
    table = Weight("word_embeddings.weight", (("", vocab), ("", arch.hidden)))
    head = Linear("output_layer", ("", arch.hidden), ("", vocab))
    local = replace(
        arch,
        vocab=vocab,
        layers=tuple(shards[id(layer)] for layer in arch.layers),
        embedding=(table, *arch.embedding[1:]),
        embedding_norm=None,
        final_norm=replace(final_norm(arch), name="final_layernorm"),
        head=None if arch.tied else head,
        head_extra=(),
        buffers=(),
        windows=(),
    )
    share = arch.embedding[0].share
    local = local if share is None else with_share(local, share)
    return replace(local, around=_around(local))


def final_norm(arch: Arch) -> Norm:
    """The norm after the last layer, which every model that Megatron-DeepSpeed runs has."""
    assert arch.final_norm is not None
    return arch.final_norm


def rank_layer(run: Run, layer: Layer) -> Layer:
    """One layer's shards, with the sizes of its modules, which stage 3 gathers one by one."""
    parts = _modules(run, layer)
    sizes = [tuple(int(weight.numel) for weight in module) for module in parts]
    first, qkv, dense, second, up, down = sizes
    core: tuple[ModuleSizes, ...] = ((), (), ())  # core attention, its softmax and its dropout
    groups = (((),), (first,), ((), qkv, *core, dense), (second,), ((), up, down))
    return Layer(
        kind=layer.kind, extra=tuple(w for module in parts for w in module), modules=groups
    )


def _modules(run: Run, layer: Layer) -> tuple[list[Weight], ...]:
    """The weights of each module with parameters: norm, two of attention, norm, two of the MLP."""
    tp, hidden = cast(int, run.mesh.tp), run.arch.hidden
    linear = partial(_linear, run.arch.embedding[0].share)
    mixer, mlp = layer.mixer, layer.mlp
    assert isinstance(mixer, Attention)
    assert isinstance(mlp, Mlp)
    heads = mixer.heads * mixer.head_dim // tp
    rows = heads + 2 * mixer.kv_heads * mixer.head_dim // tp
    inner = mlp.ffn // tp
    width = inner * (2 if mlp.gated else 1)
    return (
        _norm("input_layernorm", layer.norm("pre")),
        linear("self_attention.query_key_value", hidden, rows, mixer.inputs[0].bias),
        linear("self_attention.dense", heads, hidden, mixer.output.bias),
        _norm("post_attention_layernorm", layer.norm("pre_mlp")),
        linear("mlp.dense_h_to_4h", hidden, width, mlp.inputs[0].bias),
        linear("mlp.dense_4h_to_h", inner, hidden, mlp.output.bias),
    )


def _linear(share: Share | None, name: str, ins: int, outs: int, bias: bool) -> list[Weight]:
    return list(Linear(name, ("", ins), ("", outs), bias=bias, share=share).weights())


def _norm(name: str, block: Norm | None) -> list[Weight]:
    assert block is not None
    return list(replace(block, name=name, affine=True).weights())


def _around(arch: Arch) -> tuple[tuple[ModuleSizes, ...], ...]:
    """Parameter sizes of each module before and after the layers, for stage 3.

    GPTModel's own forward reads the weight of the logits, tied or not (gpt_model.py:250), so
    DeepSpeed counts it as GPTModel's. After GPTModel come the language model, the embedding, its
    tables and its dropout, the transformer.
    """
    words, *others = (int(weight.numel) for weight in arch.embedding)
    table: ModuleSizes = () if arch.tied else (words,)
    before = ((words,), (), table, *((size,) for size in others), (), ())
    norm = tuple(int(weight.numel) for weight in final_norm(arch).weights())
    return before, (norm, (words,))


def vectors(arch: Arch) -> frozenset[int]:
    """Elements of each norm and bias: without weight decay, they are the second parameter group.

    megatron/optimizer/__init__.py:18-65. Under ZeRO 3 every parameter has one dimension when the
    groups are made (deepspeed.zero.Init has sharded it), and there is one group.
    """
    stack = (w for layer, _, _ in arch.runs for w in layer.weights())
    return frozenset(int(w.numel) for w in (*stack, *arch.after_weights()) if len(w.dims) == 1)
