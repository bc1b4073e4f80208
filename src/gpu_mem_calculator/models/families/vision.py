"""Towers that turn pictures into tokens: every parameter, as a server loads them.

A tower is a patch embedding, blocks, and a projector to the text model's width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.quoting import quoted
from ..arch.blocks import Linear, Norm, NormImpl, Weight
from .config import Config, ConfigError
from .gemma import SANDWICH

Tower = Iterator[Weight]


class TowerBlock(Struct, frozen=True, kw_only=True):
    """The names inside one block of a tower, and which parts have biases."""

    attention: str = "self_attn"
    inputs: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    output: str = "out_proj"
    bias: bool = True
    output_bias: bool | None = None  # None: as the inputs
    mlp: str = "mlp"
    up: tuple[str, ...] = ("fc1",)
    down: str = "fc2"
    mlp_bias: bool = True
    norms: tuple[str, ...] = ("layer_norm1", "layer_norm2")
    norm: NormImpl = "layer"
    head_norms: tuple[str, ...] = ()
    scales: tuple[tuple[str, bool], ...] = ()  # vectors; True: one a channel, False: one in all


def norm(name: str, size: int, impl: NormImpl = "layer") -> Tower:
    """A norm over the tower's width."""
    yield from Norm(name, ("vision", size), impl, bias=impl == "layer").weights()


def linear(name: str, ins: int, outs: int, *, bias: bool = False) -> Tower:
    """A projection that is not sharded."""
    yield from Linear(name, ("vision", ins), ("vision", outs), bias).weights()


def two_linears(names: tuple[str, str], ins: int, mid: int, outs: int, *, bias: bool) -> Tower:
    """A projector: one projection sharded by its outputs, the next by its inputs."""
    yield from Linear(names[0], ("vision", ins), ("ffn", mid), bias).weights()
    yield from Linear(names[1], ("ffn", mid), ("vision", outs), bias).weights()


def block(names: TowerBlock, hidden: int, ffn: int, inner: int, head_dim: int) -> Tower:
    """Attention, MLP and norms of one block."""
    wide, heads, mid = ("vision", hidden), ("heads", inner), ("ffn", ffn)
    joined = ("heads", inner * (3 // len(names.inputs)))
    output_bias = names.bias if names.output_bias is None else names.output_bias
    place = f"{names.attention}."
    for name in names.inputs:
        yield from Linear(place + name, wide, joined, names.bias).weights()
    yield from Linear(place + names.output, heads, wide, output_bias).weights()
    for name in names.head_norms:
        yield Weight(f"{place}{name}.weight", (("head_dim", head_dim),))
    for name in names.up:
        yield from Linear(f"{names.mlp}.{name}", wide, mid, names.mlp_bias).weights()
    yield from Linear(f"{names.mlp}.{names.down}", mid, wide, names.mlp_bias).weights()
    for name in names.norms:
        yield from norm(name, hidden, names.norm)
    for name, each in names.scales:
        yield Weight(name, (("vision", hidden if each else 1),))


def blocks(
    prefix: str,
    names: TowerBlock,
    depth: int,
    hidden: int,
    ffn: int,
    inner: int = 0,
    head_dim: int = 0,
) -> Tower:
    """All of them."""
    one = tuple(block(names, hidden, ffn, inner or hidden, head_dim))
    for index in range(depth):
        for weight in one:
            yield Weight(f"{prefix}.{index}.{weight.name}", weight.dims)


def pair(value: Any, name: str) -> tuple[int, int]:
    """A size that is one number or two."""
    both = value if isinstance(value, list) else [value, value]
    sizes = [Config({name: one}).size(name) for one in both]
    if len(sizes) != 2:
        key = f"model.config.vision_config.{name}"
        raise ConfigError(f"{key}={quoted(value)} must be a number or two")
    return sizes[0], sizes[1]


def patches(vision: Config, image: int, patch: int) -> tuple[int, tuple[int, int]]:
    """How many patches a picture has, and the size of one."""
    high, wide = pair(vision.get("image_size") or image, "image_size")
    rows, columns = pair(vision.get("patch_size") or patch, "patch_size")
    return (high // rows) * (wide // columns), (rows, columns)


def patch_weight(name: str, hidden: int, size: tuple[int, ...], channels: int = 3) -> Weight:
    """The convolution over patches."""
    return Weight(name, (("vision", hidden), ("pixel", channels), *(("pixel", s) for s in size)))


CLIP = TowerBlock()


def clip(vision: Config, prefix: str) -> Tower:
    """CLIPVisionModel: a class token, a norm before the blocks and one after."""
    hidden, ffn = vision.hidden(768), vision.ffn(3072)
    count, size = patches(vision, 224, 32)
    yield Weight(f"{prefix}.embeddings.class_embedding", (("vision", hidden),))
    yield patch_weight(f"{prefix}.embeddings.patch_embedding.weight", hidden, size)
    rows = (("position", count + 1), ("vision", hidden))
    yield Weight(f"{prefix}.embeddings.position_embedding.weight", rows)
    yield from norm(f"{prefix}.pre_layrnorm", hidden)
    depth = vision.layers(12)
    yield from blocks(f"{prefix}.encoder.layers", CLIP, depth, hidden, ffn)
    yield from norm(f"{prefix}.post_layernorm", hidden)


def siglip(vision: Config, prefix: str) -> Tower:
    """SiglipVisionModel; its pooling head is there unless `vision_use_head` is false."""
    hidden, ffn = vision.hidden(768), vision.ffn(3072)
    count, size = patches(vision, 224, 16)
    name, wide = f"{prefix}.embeddings", ("vision", hidden)
    yield patch_weight(f"{name}.patch_embedding.weight", hidden, size)
    yield Weight(f"{name}.patch_embedding.bias", (wide,))
    yield Weight(f"{name}.position_embedding.weight", (("position", count), wide))
    depth = vision.layers(12)
    yield from blocks(f"{prefix}.encoder.layers", CLIP, depth, hidden, ffn)
    yield from norm(f"{prefix}.post_layernorm", hidden)
    if vision.flag("vision_use_head", default=True):
        head = f"{prefix}.head"
        yield Weight(f"{head}.probe", (("one", 1), ("one", 1), wide))
        yield Weight(f"{head}.attention.in_proj_weight", (("vision", 3 * hidden), wide))
        yield Weight(f"{head}.attention.in_proj_bias", (("vision", 3 * hidden),))
        yield from linear(f"{head}.attention.out_proj", hidden, hidden, bias=True)
        yield from norm(f"{head}.layernorm", hidden)
        yield from linear(f"{head}.mlp.fc1", hidden, ffn, bias=True)
        yield from linear(f"{head}.mlp.fc2", ffn, hidden, bias=True)


PIXTRAL = TowerBlock(
    attention="attention",
    output="o_proj",
    bias=False,
    mlp="feed_forward",
    up=("gate_proj", "up_proj"),
    down="down_proj",
    mlp_bias=False,
    norms=("attention_norm", "ffn_norm"),
    norm="rms",
)


def pixtral(vision: Config, prefix: str) -> Tower:
    """PixtralVisionModel: rotary positions, so none are learnt."""
    hidden, ffn = vision.hidden(1024), vision.ffn(4096)
    _, size = patches(vision, 1024, 16)
    yield patch_weight(f"{prefix}.patch_conv.weight", hidden, size)
    yield from norm(f"{prefix}.ln_pre", hidden, "rms")
    depth = vision.layers(24)
    yield from blocks(f"{prefix}.transformer.layers", PIXTRAL, depth, hidden, ffn)


INTERN = TowerBlock(
    attention="attention",
    output="projection_layer",
    bias=False,
    output_bias=True,
    norms=("layernorm_before", "layernorm_after"),
    scales=(("lambda_1", True), ("lambda_2", True)),
)


def intern(vision: Config, prefix: str) -> Tower:
    """InternVLVisionModel."""
    if vision.flag("use_qk_norm") or vision.get("norm_type") == "rms_norm":
        keys = "use_qk_norm and norm_type='rms_norm'"
        raise ConfigError(f"model.config.vision_config.{keys} are not modelled; leave them out")
    hidden, ffn = vision.hidden(1024), vision.ffn(4096)
    count, size = patches(vision, 448, 14)
    name, wide = f"{prefix}.embeddings", ("vision", hidden)
    yield Weight(f"{name}.cls_token", (("one", 1), ("one", 1), wide))
    if vision.flag("use_absolute_position_embeddings", default=True):
        rows = (("one", 1), ("position", count + 1), wide)
        yield Weight(f"{name}.position_embeddings", rows)
    yield patch_weight(f"{name}.patch_embeddings.projection.weight", hidden, size)
    yield Weight(f"{name}.patch_embeddings.projection.bias", (wide,))
    names = replace(INTERN, bias=vision.flag("attention_bias"))
    depth = vision.layers(24)
    yield from blocks(f"{prefix}.encoder.layer", names, depth, hidden, ffn)
    if not vision.flag("use_mean_pooling", default=True):
        yield from norm(f"{prefix}.layernorm", hidden)


GEMMA4 = TowerBlock(
    inputs=("q_proj.linear", "k_proj.linear", "v_proj.linear"),
    output="o_proj.linear",
    bias=False,
    up=("gate_proj.linear", "up_proj.linear"),
    down="down_proj.linear",
    mlp_bias=False,
    head_norms=("q_norm", "k_norm"),
    norm="rms",
    norms=tuple(name for _, name in SANDWICH),
)


def gemma4(vision: Config, prefix: str) -> Tower:
    """Gemma4VisionModel: learnt positions along each side of the picture."""
    hidden, ffn = vision.hidden(768), vision.ffn(3072)
    rows = vision.size("position_embedding_size", default=10240)
    name, wide = f"{prefix}.patch_embedder", ("vision", hidden)
    yield Weight(f"{name}.position_embedding_table", (("side", 2), ("position", rows), wide))
    pixels = 3 * vision.size("patch_size", default=16) ** 2
    yield from linear(f"{name}.input_proj", pixels, hidden)
    size = vision.size("head_dim", default=64)
    inner = size * vision.size("num_attention_heads", default=12)
    depth = vision.layers(16)
    yield from blocks(f"{prefix}.encoder.layers", GEMMA4, depth, hidden, ffn, inner, size)


TOWERS = {"clip_vision_model": clip, "siglip_vision_model": siglip, "pixtral": pixtral}
TOWERS["internvl_vision"] = intern


def known_tower(vision: Config, prefix: str, default: str) -> Tower:
    """The tower that a `vision_config` names."""
    kind = str(vision.get("model_type") or default)
    if kind not in TOWERS:
        choices = ", ".join(TOWERS)
        raise ConfigError(f"model.config.vision_config.model_type={kind!r} is not one of {choices}")
    return TOWERS[kind](vision, prefix)
