"""The tower that turns sound into tokens (Gemma 4): every parameter, as a server loads them."""

from __future__ import annotations

from ..arch.blocks import Weight
from .config import Config, ConfigError
from .vision import Tower, linear, norm


def _channels(sound: Config) -> tuple[int, int]:
    counts = sound.get("subsampling_conv_channels") or [128, 32]
    if not isinstance(counts, list) or len(counts) != 2:
        key = "model.config.audio_config.subsampling_conv_channels"
        raise ConfigError(f"{key}={counts!r} must be a list of two numbers")
    first, second = (Config({"channels": one}).size("channels") for one in counts)
    return first, second


def _layer(prefix: str, hidden: int, head_dim: int, taps: int) -> Tower:
    """Half an MLP, attention with relative positions, a convolution, half an MLP."""
    for half in ("feed_forward1", "feed_forward2"):
        name = f"{prefix}.{half}"
        yield from linear(f"{name}.ffw_layer_1.linear", hidden, 4 * hidden)
        yield from linear(f"{name}.ffw_layer_2.linear", 4 * hidden, hidden)
        yield from norm(f"{name}.pre_layer_norm", hidden, "rms")
        yield from norm(f"{name}.post_layer_norm", hidden, "rms")
    name = f"{prefix}.self_attn"
    yield Weight(f"{name}.per_dim_scale", (("head_dim", head_dim),))
    linears = (f"{part}.linear" for part in ("q_proj", "k_proj", "v_proj", "post"))
    for part in (*linears, "relative_k_proj"):
        yield from linear(f"{name}.{part}", hidden, hidden)
    name = f"{prefix}.lconv1d"
    yield from linear(f"{name}.linear_start.linear", hidden, 2 * hidden)
    yield from linear(f"{name}.linear_end.linear", hidden, hidden)
    dims = (("vision", hidden), ("conv_in", 1), ("conv", taps))
    yield Weight(f"{name}.depthwise_conv1d.weight", dims)
    yield from norm(f"{name}.pre_layer_norm", hidden, "rms")
    yield from norm(f"{name}.conv_norm", hidden, "rms")
    for part in ("norm_pre_attn", "norm_post_attn", "norm_out"):
        yield from norm(f"{prefix}.{part}", hidden, "rms")


def gemma4(sound: Config, prefix: str, text: int) -> Tower:
    """Gemma4AudioModel and its projection to the text model's width."""
    hidden = sound.hidden(1024)
    heads = sound.size("num_attention_heads", default=8)
    first, second = _channels(sound)
    name = f"{prefix}.subsample_conv_projection"
    for index, (ins, outs) in enumerate(((1, first), (first, second))):
        dims = (("vision", outs), ("conv_in", ins), ("conv", 3), ("conv", 3))
        yield Weight(f"{name}.layer{index}.conv.weight", dims)
        yield from norm(f"{name}.layer{index}.norm", outs, "rms")
    yield from linear(f"{name}.input_proj_linear", max(1, first // 4) * second, hidden)
    size, taps = sound.divided(hidden, "heads", heads), sound.size("conv_kernel_size", default=5)
    for index in range(sound.layers(12)):
        yield from _layer(f"{prefix}.layers.{index}", hidden, size, taps)
    outs = sound.size("output_proj_dims", default=1536)
    yield from linear(f"{prefix}.output_proj", hidden, outs, bias=True)
    yield from linear("model.embed_audio.embedding_projection", outs, text)
