"""Zamba2: Mamba-2 layers, and transformer blocks that several layers share.

Parameters and cache; its activations are not modelled.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ..arch.arch import Arch, Layer
from ..arch.blocks import Attention, Linear, Norm, StateSpace, Weight
from .attention import separate_attention
from .config import Config, Fields
from .frame import decoder, decoder_layer
from .mamba2 import Mamba2Keys, mamba2_block
from .windows import HYBRID, LINEAR, mixed_types

BLOCK = "shared_transformer"
MAMBA2 = Mamba2Keys(
    *(("mamba_d_state", 64), ("mamba_ngroups", 1), ("mamba_d_conv", 4), ("chunk_size", 256)),
    bias="add_bias_linear",
)


def _mamba(config: Config, hidden: int) -> StateSpace:
    inner = hidden * config.size("mamba_expand", default=2)
    heads = config.size("n_mamba_heads", default=8)
    config.divided(inner, "mamba heads", heads)
    return mamba2_block(config, hidden, inner, heads, MAMBA2)


def _attention(config: Config, hidden: int) -> Attention:
    """It reads the stream and the embedding side by side: 2 x hidden in, hidden out."""
    heads = config.size("num_attention_heads", default=32)
    kv_heads = config.size("num_key_value_heads", default=heads)
    config.divided(heads, "key-value heads", kv_heads)
    size = config.divided(2 * hidden, "heads", heads)
    plain = separate_attention(2 * hidden, heads, kv_heads, size)
    return replace(plain, output=Linear("o_proj", ("heads", 2 * hidden), ("embed", hidden)))


def _adapter(name: str, ins: int, rank: int, outs: int, dim: str) -> Iterator[Weight]:
    yield Weight(f"{name}.0.weight", (("rank", rank), ("embed", ins)))
    yield Weight(f"{name}.1.weight", ((dim, outs), ("rank", rank)))


def _block(config: Config, hidden: int, block: int, blocks: int, places: int) -> Iterator[Weight]:
    """Beside its attention, a block has an MLP, norms, and an adapter for each place it runs at."""
    rank, bias = (config.size("adapter_rank", default=128), config.flag("add_bias_linear"))
    ffn = config.ffn(4 * hidden)
    embed = ("embed", hidden)
    yield from Linear("feed_forward.gate_up_proj", embed, ("ffn", 2 * ffn), bias).weights()
    yield from Linear("feed_forward.down_proj", ("ffn", ffn), embed, bias).weights()
    yield from Norm("input_layernorm", ("embed", 2 * hidden)).weights()
    yield from Norm("pre_ff_layernorm", embed).weights()
    attention = config.flag("use_shared_attention_adapter")
    for place in range(block, places, blocks):
        name = f"feed_forward.gate_up_proj_adapter_list.{place}"
        yield from _adapter(name, hidden, rank, 2 * ffn, "ffn")
        for letter in "qkv" if attention else "":
            name = f"self_attn.linear_{letter}_adapter_list.{place}"
            yield from _adapter(name, 2 * hidden, rank, 2 * hidden, "heads")


def _hybrid_layer(
    config: Config, hidden: int, mamba: StateSpace, number: int, places: int
) -> Layer:
    """A shared block before a Mamba layer; the first to use a block has its weights."""
    blocks = config.size("num_mem_blocks", default=1)
    first = number < blocks
    attention = replace(_attention(config, hidden), borrowed=not first)
    weights = _block(config, hidden, number, blocks, places) if first else ()
    named = (replace(weight, name=f"{BLOCK}.{weight.name}") for weight in weights)
    embed = ("embed", hidden)
    return decoder_layer(
        hidden,
        mamba,
        None,
        mixer_name="mamba_decoder.mamba",
        beside=((f"{BLOCK}.self_attn", attention),),
        norms=(("pre", Norm("mamba_decoder.input_layernorm", embed)),),
        extra=(Weight("linear.weight", (embed, embed)), *named),
    )


def read_zamba2(config: Config) -> Arch:
    """Zamba2 (transformers 5.17 models/zamba2)."""
    hidden, layers, key = config.hidden(2560), config.layers(54), "layers_block_type"
    shared = (*range(6, 48, 6), 47, 51)
    usual = [HYBRID if i in shared else LINEAR for i in range(min(layers, 54))]
    types = mixed_types(config, key, layers, usual, (LINEAR, HYBRID))
    mamba, numbers = _mamba(config, hidden), iter(range(layers))
    norms = (("pre", Norm("input_layernorm", ("embed", hidden))),)
    plain = decoder_layer(hidden, mamba, None, kind="mamba", mixer_name="mamba", norms=norms)
    stack = tuple(
        _hybrid_layer(config, hidden, mamba, next(numbers), types.count(HYBRID))
        if kind == HYBRID
        else plain
        for kind in types
    )
    norm = Norm("model.final_layernorm", ("embed", hidden))
    sizes: Fields = {"vocab": 32000, "max_seq_len": 4096, "tied": True, "trains": False}
    return decoder(config, "zamba2", hidden, stack, **sizes, final_norm=norm)


FAMILIES = {"zamba2": read_zamba2}
