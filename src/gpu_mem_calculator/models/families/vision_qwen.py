"""The towers of Qwen's and Kimi's vision models, Llama 4's and Llama 3.2's."""

from __future__ import annotations

from msgspec.structs import replace

from ..arch.blocks import Weight
from .config import MOST_LAYERS, Config, ConfigError
from .vision import Tower, TowerBlock, blocks, linear, norm, patch_weight, patches, two_linears

QWEN = TowerBlock(attention="attn", inputs=("qkv",), output="proj", norms=("norm1", "norm2"))
QWEN25 = replace(QWEN, up=("gate_proj", "up_proj"), down="down_proj", norm="rms")
QWEN3 = replace(QWEN, up=("linear_fc1",), down="linear_fc2")
KIMI = TowerBlock(attention="attn", output="proj", norms=("norm1", "norm2"))
META = ("input_layernorm", "post_attention_layernorm")
LLAMA4 = TowerBlock(output="o_proj", norms=META)
MLLAMA = TowerBlock(output="o_proj", bias=False, norms=META)
MLLAMA_GLOBAL = replace(MLLAMA, scales=(("gate_attn", False), ("gate_ffn", False)))


def _cube(vision: Config, patch: int) -> tuple[int, int, int]:
    """A patch in time and space."""
    size = vision.size("patch_size", default=patch)
    return vision.size("temporal_patch_size", default=2), size, size


def _merge(vision: Config) -> int:
    return vision.size("spatial_merge_size", default=2) ** 2


def _channels(vision: Config) -> int:
    return vision.size("in_channels", "in_chans", default=3)


def _patches(vision: Config, prefix: str, hidden: int) -> Weight:
    """The projection of patches of 14 x 14 pixels."""
    name = f"{prefix}.patch_embed.proj.weight"
    return patch_weight(name, hidden, _cube(vision, 14), _channels(vision))


def _merger(vision: Config, prefix: str, hidden: int, out: int) -> Tower:
    """The two linears that join neighbouring patches."""
    wide = hidden * _merge(vision)
    names = (f"{prefix}.merger.mlp.0", f"{prefix}.merger.mlp.2")
    yield from two_linears(names, wide, wide, out, bias=True)


def qwen2_vl(vision: Config, prefix: str) -> Tower:
    """Qwen2VisionTransformer: `embed_dim` wide, `hidden_size` out."""
    hidden = vision.size("embed_dim", default=1280)
    depth = vision.size("depth", default=32, most=MOST_LAYERS)
    ffn = int(hidden * vision.number("mlp_ratio", default=4))
    yield _patches(vision, prefix, hidden)
    yield from blocks(f"{prefix}.blocks", QWEN, depth, hidden, max(1, ffn))
    yield from norm(f"{prefix}.merger.ln_q", hidden)
    yield from _merger(vision, prefix, hidden, vision.hidden(3584))


def qwen2_5_vl(vision: Config, prefix: str) -> Tower:
    """Qwen2_5_VisionTransformer: gated MLPs, norms without biases."""
    hidden, ffn = vision.hidden(3584), vision.ffn(3420)
    depth = vision.size("depth", default=32, most=MOST_LAYERS)
    yield _patches(vision, prefix, hidden)
    yield from blocks(f"{prefix}.blocks", QWEN25, depth, hidden, ffn)
    yield from norm(f"{prefix}.merger.ln_q", hidden, "rms")
    yield from _merger(vision, prefix, hidden, vision.size("out_hidden_size", default=3584))


def qwen3_vl(vision: Config, prefix: str) -> Tower:
    """Qwen3VLVisionModel; Qwen3.5's has no `deepstack_visual_indexes`."""
    hidden, ffn = vision.hidden(1152), vision.ffn(4304)
    depth = vision.size("depth", default=27, most=MOST_LAYERS)
    positions = vision.size("num_position_embeddings", default=2304)
    name = f"{prefix}.patch_embed.proj"
    yield patch_weight(f"{name}.weight", hidden, _cube(vision, 16), _channels(vision))
    yield Weight(f"{name}.bias", (("vision", hidden),))
    yield Weight(f"{prefix}.pos_embed.weight", (("position", positions), ("vision", hidden)))
    yield from blocks(f"{prefix}.blocks", QWEN3, depth, hidden, ffn)
    wide, out = hidden * _merge(vision), vision.size("out_hidden_size", default=3584)
    deep = vision.get("deepstack_visual_indexes") or []
    if not isinstance(deep, list):
        key = "model.config.vision_config.deepstack_visual_indexes"
        raise ConfigError(f"{key}={deep!r} must be a list of layer numbers")
    mergers = {"merger": hidden} | {f"deepstack_merger_list.{i}": wide for i in range(len(deep))}
    for merger, normed in mergers.items():
        yield from norm(f"{prefix}.{merger}.norm", normed)
        names = (f"{prefix}.{merger}.linear_fc1", f"{prefix}.{merger}.linear_fc2")
        yield from two_linears(names, wide, wide, out, bias=True)


def kimi(vision: Config, prefix: str) -> Tower:
    """Kimi K2.5's vision tower."""
    hidden = vision.size("hidden_size", "vt_hidden_size", default=1152)
    ffn = vision.size("intermediate_size", "vt_intermediate_size", default=4304)
    depth = vision.size("num_hidden_layers", "vt_num_hidden_layers", default=27)
    size = vision.size("patch_size", default=14)
    high = vision.size("pos_emb_height", "init_pos_emb_height", default=64)
    wide = vision.size("pos_emb_width", "init_pos_emb_width", default=64)
    name = f"{prefix}.patch_embed"
    yield patch_weight(f"{name}.proj.weight", hidden, (size, size))
    yield Weight(f"{name}.proj.bias", (("vision", hidden),))
    rows = (("position", high), ("position", wide), ("vision", hidden))
    yield Weight(f"{name}.pos_emb.position_embeddings", rows)
    yield from blocks(f"{prefix}.layers", KIMI, depth, hidden, ffn)
    yield from norm(f"{prefix}.final_layernorm", hidden)


def llama4(vision: Config, prefix: str) -> Tower:
    """Llama4VisionModel, its adapter included."""
    hidden, ffn = vision.hidden(768), vision.ffn(5632)
    count, size = patches(vision, 448, 14)
    depth = vision.layers(34)
    yield Weight(f"{prefix}.class_embedding", (("vision", hidden),))
    rows = (("position", count + 1), ("vision", hidden))
    yield Weight(f"{prefix}.positional_embedding_vlm", rows)
    yield from linear(f"{prefix}.patch_embedding.linear", 3 * size[0] * size[1], hidden)
    yield from norm(f"{prefix}.layernorm_pre", hidden)
    yield from norm(f"{prefix}.layernorm_post", hidden)
    yield from blocks(f"{prefix}.model.layers", LLAMA4, depth, hidden, ffn)
    ins = vision.size("projector_input_dim", default=4096)
    outs = vision.size("projector_output_dim", default=4096)
    yield from linear(f"{prefix}.vision_adapter.mlp.fc1", ffn, ins)
    yield from linear(f"{prefix}.vision_adapter.mlp.fc2", outs, outs)


def _ratios(vision: Config) -> int:
    """How a picture may be cut into tiles: this many ways, and one for none."""
    ratios = vision.get("supported_aspect_ratios")
    if ratios is None:
        return 9
    if not isinstance(ratios, list):
        key = "model.config.vision_config.supported_aspect_ratios"
        raise ConfigError(f"{key}={ratios!r} must be a list of pairs")
    return len(ratios) + 1


def mllama(vision: Config, prefix: str) -> Tower:
    """MllamaVisionModel: positions for each tile of each way to cut a picture."""
    hidden, ffn = vision.hidden(1280), vision.ffn(5120)
    count, size = patches(vision, 448, 14)
    tiles, ways = vision.size("max_num_tiles", default=4), _ratios(vision)
    one, wide = ("one", 1), ("vision", hidden)
    yield Weight(f"{prefix}.class_embedding", (wide,))
    yield patch_weight(f"{prefix}.patch_embedding.weight", hidden, size)
    name = f"{prefix}.gated_positional_embedding"
    yield Weight(f"{name}.gate", (one,))
    yield Weight(f"{name}.embedding", (("position", count + 1), wide))
    table = ("vision", tiles * (count + 1) * hidden)
    yield Weight(f"{name}.tile_embedding.weight", (("position", ways), table))
    for side in ("pre", "post"):
        name = f"{prefix}.{side}_tile_positional_embedding"
        yield Weight(f"{name}.gate", (one,))
        rows = (("position", ways), ("vision", tiles * hidden))
        yield Weight(f"{name}.embedding.weight", rows)
        yield from norm(f"{prefix}.layernorm_{side}", hidden)
    stacks = (
        ("transformer", MLLAMA, "num_hidden_layers", 32),
        ("global_transformer", MLLAMA_GLOBAL, "num_global_layers", 8),
    )
    for name, names, key, usual in stacks:
        depth = vision.size(key, default=usual)
        yield from blocks(f"{prefix}.{name}.layers", names, depth, hidden, ffn)
