"""Models that see: the text model inside, and the tower beside it.

A config has the text model under `text_config` and the tower under `vision_config`; older ones
have the text model's keys at the top. Text names are those of the text model alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ..model.arch import Arch
from ..model.blocks import Weight
from . import audio, read_config, vision, vision_qwen
from .config import Config, ConfigError
from .vision import Tower, linear, norm, two_linears

Made = Callable[[Config, Config, int], Tower]  # the whole config, its vision part, text width
VISION = "vision_tower"
# A short form of `vision_config` and the keys that towers read.
SHORT = {
    "layers": ("num_hidden_layers", "depth"),
    "hidden": ("hidden_size", "embed_dim"),
    "ffn": ("intermediate_size",),
    "heads": ("num_attention_heads",),
    "patch": ("patch_size",),
    "image": ("image_size",),
    "global_layers": ("num_global_layers",),
    "max_tiles": ("max_num_tiles",),
}
LEFT_OUT = "the parameters of the tower for pictures and sound are not counted"
# Text models with another name inside: the family that each is, and its defaults.
ALIASES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2_vl_text": (
        "qwen2",
        {
            "hidden_size": 8192,
            "intermediate_size": 29568,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "vocab_size": 152064,
        },
    ),
    "gemma4_unified_text": (
        "gemma4_text",
        {
            "hidden_size_per_layer_input": 0,
            "sliding_window": 1024,
            "max_position_embeddings": 262144,
        },
    ),
    "qwen3_vl_text": ("qwen3", {"max_position_embeddings": 128000}),
    "qwen3_vl_moe_text": (
        "qwen3_moe",
        {
            "intermediate_size": 5632,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "moe_intermediate_size": 1408,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "max_position_embeddings": 128000,
        },
    ),
}
ALIASES["qwen2_5_vl_text"] = ALIASES["qwen2_vl_text"]
ALIASES["glm4v_text"], ALIASES["glm4v_moe_text"] = ("glm4", {}), ("glm4_moe", {})


class VisionLanguageFamily(Struct, frozen=True, kw_only=True):
    """A family: what its text model is by default, and how its tower is made.

    `defaults` are those of a config without `text_config`.
    """

    text: str
    tower: Made | None
    defaults: Mapping[str, Any] = {}


def text_keys(data: Mapping[str, Any], nested: VisionLanguageFamily) -> dict[str, Any]:
    """The text model's own config.json."""
    inner = data.get("text_config", data.get("llm_config"))
    defaults: Mapping[str, Any] = {}
    if inner is None:
        defaults = nested.defaults
        inner = {k: v for k, v in data.items() if k not in ("model_type", "vision_config")}
    if not isinstance(inner, Mapping):
        raise ConfigError(f"model.config.text_config={inner!r} must be an object")
    tie = data.get("tie_word_embeddings")
    outer = {} if tie is None else {"tie_word_embeddings": tie}
    kind = str(inner.get("model_type") or nested.text)
    if kind in ALIASES:
        kind, more = ALIASES[kind]
        defaults = {**more, **defaults}
    return {**defaults, **outer, **inner, "model_type": kind}


def vision_keys(data: Mapping[str, Any]) -> Config | None:
    """The tower's config; None where there is none."""
    full, short = data.get("vision_config"), data.get("vision")
    for name, value in (("vision_config", full), ("vision", short)):
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"model.config.{name}={value!r} must be an object")
    if full is not None:
        return Config(full)
    if short is None:
        return None
    return Config(
        {long: short[key] for key, names in SHORT.items() if key in short for long in names}
    )


def read_nested(nested: VisionLanguageFamily, data: Mapping[str, Any]) -> Arch:
    """The text model with its tower beside it."""
    keys = text_keys(data, nested)
    if keys["model_type"] == data.get("model_type"):
        raise ConfigError(
            f"model.config.text_config.model_type={keys['model_type']!r} must be "
            "that of a text model"
        )
    arch = read_config(keys)
    eyes = vision_keys(data)
    if eyes is None or nested.tower is None:
        return replace(arch, left_out=(*arch.left_out, LEFT_OUT))
    tower = tuple(nested.tower(Config(data), eyes, arch.hidden))
    return replace(arch, tower=tower)


def read_inside(data: Mapping[str, Any]) -> Arch:
    """The text model inside a model of no known family."""
    return read_nested(VisionLanguageFamily(text="", tower=None), data)


def _projector(config: Config, eyes: Config, hidden: int, *, bias: bool = True) -> Tower:
    """LLaVA's two linears, from as many layers' features as are read."""
    layers = config.get("vision_feature_layer")
    count = len(layers) if isinstance(layers, list) else 1
    width = eyes.size("hidden_size", default=1024) * max(1, count)
    name = "model.multi_modal_projector"
    bias = config.flag("multimodal_projector_bias", default=bias)
    names = (f"{name}.linear_1", f"{name}.linear_2")
    yield from two_linears(names, width, hidden, hidden, bias=bias)


LARGE = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "image_size": 336,
    "patch_size": 14,
}


def llava(config: Config, eyes: Config, hidden: int) -> Tower:
    """LLaVA: CLIP or another known tower."""
    default = "clip_vision_model"
    if config.get("model_type") == "llava(pixtral)":
        default = "pixtral"
    if eyes.get("model_type") is None and default != "pixtral":
        eyes = Config({**LARGE, **eyes.data})
    yield from vision.known_tower(eyes, f"model.{VISION}", default)
    yield from _projector(config, eyes, hidden)


def llava_next(config: Config, eyes: Config, hidden: int) -> Tower:
    """LLaVA-NeXT: a learnt token at the end of each row of tiles."""
    yield Weight("model.image_newline", (("vision", hidden),))
    yield from llava(config, eyes, hidden)


def mistral3(config: Config, eyes: Config, hidden: int) -> Tower:
    """Mistral Small 3.1 and later: Pixtral, its patches merged before the projector."""
    eyes = Config({"patch_size": 14, "image_size": 1540, **eyes.data})
    yield from vision.pixtral(eyes, f"model.{VISION}")
    width, name = eyes.size("hidden_size", default=1024), "model.multi_modal_projector"
    merged = width * config.size("spatial_merge_size", default=2) ** 2
    yield from norm(f"{name}.norm", width, "rms")
    yield from linear(f"{name}.patch_merger.merging_layer", merged, width)
    yield from _projector(config, eyes, hidden, bias=False)


def gemma3(config: Config, eyes: Config, hidden: int) -> Tower:
    """Gemma 3: SigLIP, pooled and normed."""
    if config.get("vision_config") is None:  # the published sizes have no pooling head
        eyes = Config({**eyes.data, "vision_use_head": False})
    yield from vision.siglip(eyes, f"model.{VISION}")
    width, name = eyes.size("hidden_size", default=768), "model.multi_modal_projector"
    dims = (("vision", width), ("vision", hidden))
    yield Weight(f"{name}.mm_input_projection_weight", dims)
    yield from norm(f"{name}.mm_soft_emb_norm", width, "rms")


def gemma4(config: Config, eyes: Config, hidden: int) -> Tower:
    """Gemma 4's own tower, and the small ones' second for sound."""
    yield from vision.gemma4(eyes, f"model.{VISION}")
    width = eyes.size("hidden_size", default=768)
    yield from linear("model.embed_vision.embedding_projection", width, hidden)
    if config.get("audio_config") is not None:
        yield from audio.gemma4(config.section("audio_config"), "model.audio_tower", hidden)


def internvl(config: Config, eyes: Config, hidden: int) -> Tower:
    """InternVL: neighbouring patches are joined before the projector."""
    yield from vision.known_tower(eyes, f"model.{VISION}", "internvl_vision")
    ratio = config.number("downsample_ratio", default=0.5)
    if not 0 < ratio <= 1:
        raise ConfigError(f"model.config.downsample_ratio={ratio} must be above 0 and at most 1")
    joined = eyes.size("hidden_size", default=1024) * int(1 / ratio) ** 2
    name = "model.multi_modal_projector"
    yield from norm(f"{name}.layer_norm", joined)
    yield from linear(f"{name}.linear_1", joined, hidden, bias=True)
    yield from linear(f"{name}.linear_2", hidden, hidden, bias=True)


def kimi(config: Config, eyes: Config, hidden: int) -> Tower:
    """Kimi K2.5."""
    yield from vision_qwen.kimi(eyes, f"model.{VISION}")
    width = eyes.size("hidden_size", "vt_hidden_size", default=1152)
    high, wide = vision.pair(eyes.get("merge_kernel_size") or 2, "merge_kernel_size")
    name, joined = "model.mm_projector", width * high * wide
    yield from norm(f"{name}.pre_norm", config.size("projection_hidden_size", default=1152))
    yield from linear(f"{name}.in_proj", joined, joined, bias=True)
    yield from linear(f"{name}.out_proj", joined, hidden, bias=True)


def llama4(config: Config, eyes: Config, hidden: int) -> Tower:
    """Llama 4: names begin without `model`."""
    yield from vision_qwen.llama4(eyes, "vision_model")
    width = eyes.size("vision_output_dim", default=7680)
    yield from linear("multi_modal_projector.linear_1", width, hidden)


def mllama(config: Config, eyes: Config, hidden: int) -> Tower:
    """Llama 3.2 Vision; what is published sees 560 x 560 pixels."""
    if config.get("vision_config") is None:
        eyes = Config({"image_size": 560, **eyes.data})
    yield from vision_qwen.mllama(eyes, "model.vision_model")
    width = eyes.size("vision_output_dim", default=7680)
    yield from linear("model.multi_modal_projector", width, hidden, bias=True)


def paligemma(config: Config, eyes: Config, hidden: int) -> Tower:
    """PaliGemma: SigLIP and one linear."""
    yield from vision.siglip(Config({"vision_use_head": False, **eyes.data}), f"model.{VISION}")
    width = eyes.size("hidden_size", default=1152)
    yield from linear("model.multi_modal_projector.linear", width, hidden, bias=True)


def _qwen(tower: Callable[[Config, str], Tower], extra: Mapping[str, Any] = {}) -> Made:
    """A tower that has its projector inside."""

    def tower_weights(config: Config, eyes: Config, hidden: int) -> Iterator[Weight]:
        short = (
            {} if config.get("vision_config") is not None else {"out_hidden_size": hidden, **extra}
        )
        return tower(Config({**short, **eyes.data}), "model.visual")

    return tower_weights


def _qwen2_vl(config: Config, eyes: Config, hidden: int) -> Tower:
    """Qwen2-VL: `hidden_size` of its tower is the text model's."""
    keys = dict(eyes.data)
    if config.get("vision_config") is None:
        keys["hidden_size"] = hidden
    return vision_qwen.qwen2_vl(Config(keys), "model.visual")


MISTRAL3 = {
    "vocab_size": 131072,
    "hidden_size": 5120,
    "intermediate_size": 32768,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "sliding_window": None,
}
NESTED = {
    "llava": VisionLanguageFamily(text="llama", tower=llava),
    "llava(pixtral)": VisionLanguageFamily(
        text="mistral", tower=llava, defaults={"sliding_window": None}
    ),
    "llava_next": VisionLanguageFamily(text="llama", tower=llava_next),
    "mistral3": VisionLanguageFamily(text="mistral", tower=mistral3, defaults=MISTRAL3),
    "gemma3": VisionLanguageFamily(text="gemma3_text", tower=gemma3),
    "gemma3n": VisionLanguageFamily(text="gemma3n_text", tower=None),
    "gemma4": VisionLanguageFamily(text="gemma4_text", tower=gemma4),
    "gemma4_unified": VisionLanguageFamily(text="gemma4_unified_text", tower=None),
    "llama4": VisionLanguageFamily(text="llama4_text", tower=llama4),
    "mllama": VisionLanguageFamily(text="mllama_text_model", tower=mllama),
    "paligemma": VisionLanguageFamily(text="gemma", tower=paligemma),
    "internvl": VisionLanguageFamily(text="qwen2", tower=internvl),
    "internvl_chat": VisionLanguageFamily(text="qwen2", tower=None),
    "kimi_k25": VisionLanguageFamily(text="deepseek_v3", tower=kimi),
    "kimi_vl": VisionLanguageFamily(text="deepseek_v3", tower=None),
    "qwen2_vl": VisionLanguageFamily(text="qwen2_vl_text", tower=_qwen2_vl),
    "qwen2_5_vl": VisionLanguageFamily(text="qwen2_5_vl_text", tower=_qwen(vision_qwen.qwen2_5_vl)),
    "qwen3_vl": VisionLanguageFamily(text="qwen3_vl_text", tower=_qwen(vision_qwen.qwen3_vl)),
    "qwen3_vl_moe": VisionLanguageFamily(
        text="qwen3_vl_moe_text", tower=_qwen(vision_qwen.qwen3_vl)
    ),
    "qwen3_5": VisionLanguageFamily(text="qwen3_5_text", tower=_qwen(vision_qwen.qwen3_vl)),
    "qwen3_5_moe": VisionLanguageFamily(text="qwen3_5_moe_text", tower=_qwen(vision_qwen.qwen3_vl)),
}
FAMILIES = {name: partial(read_nested, nested) for name, nested in NESTED.items()}
