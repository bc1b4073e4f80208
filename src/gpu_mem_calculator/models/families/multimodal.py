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

from ...ledger.quoting import quoted
from ..arch.arch import Arch
from ..arch.blocks import Weight
from . import audio, vision, vision_qwen
from .config import Config, ConfigError, Data
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


def sizes(hidden: int, ffn: int, layers: int, heads: int, kv_heads: int, **rest: Any) -> Data:
    """Defaults of a text model, under its keys."""
    rest |= {"hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers}
    return {**rest, "num_attention_heads": heads, "num_key_value_heads": kv_heads}


# Text models with another name inside: the family that each is, and its defaults.
QWEN2_72B = ("qwen2", sizes(8192, 29568, 80, 64, 8, vocab_size=152064))
LENGTH = {"max_position_embeddings": 128000}
EXPERTS = {"moe_intermediate_size": 1408, "num_experts": 60, "num_experts_per_tok": 4}
QWEN3_MOE = sizes(2048, 5632, 24, 16, 16, **EXPERTS, **LENGTH)
GEMMA4 = {"sliding_window": 1024, "max_position_embeddings": 262144}
ALIASES: dict[str, tuple[str, Data]] = {
    "qwen2_vl_text": QWEN2_72B,
    "qwen2_5_vl_text": QWEN2_72B,
    "gemma4_unified_text": ("gemma4_text", {"hidden_size_per_layer_input": 0, **GEMMA4}),
    "qwen3_vl_text": ("qwen3", LENGTH),
    "qwen3_vl_moe_text": ("qwen3_moe", QWEN3_MOE),
    "glm4v_text": ("glm4", {}),
    "glm4v_moe_text": ("glm4_moe", {}),
}


class VisionLanguageFamily(Struct, frozen=True):
    """A family: what its text model is by default, and how its tower is made.

    `defaults` are those of a config without `text_config`.
    """

    text: str
    tower: Made | None
    defaults: Data = {}


def text_keys(data: Data, nested: VisionLanguageFamily) -> dict[str, Any]:
    """The text model's own config.json."""
    inner = data.get("text_config", data.get("llm_config"))
    defaults: Data = {}
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


def vision_keys(data: Data) -> Config | None:
    """The tower's config; None where there is none."""
    full, short = data.get("vision_config"), data.get("vision")
    for name, value in (("vision_config", full), ("vision", short)):
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"model.config.{name}={quoted(value)} must be an object")
    if full is not None or short is None:
        return None if full is None else Config(full)
    known = {key: names for key, names in SHORT.items() if key in short}
    return Config({long: short[key] for key, names in known.items() for long in names})


def read_nested(nested: VisionLanguageFamily, config: Config) -> Arch:
    """The text model with its tower beside it."""
    keys = text_keys(config.data, nested)
    kind = keys["model_type"]
    if kind == config.data.get("model_type"):
        rule = "must be that of a text model"
        raise ConfigError(f"model.config.text_config.model_type={kind!r} {rule}")
    assert config.read is not None
    arch, eyes = config.read(keys), vision_keys(config.data)
    if eyes is None or nested.tower is None:
        return replace(arch, left_out=(*arch.left_out, LEFT_OUT))
    return replace(arch, tower=tuple(nested.tower(config, eyes, arch.hidden)))


def read_inside(config: Config) -> Arch:
    """The text model inside a model of no known family."""
    return read_nested(VisionLanguageFamily("", None), config)


def _projector(config: Config, eyes: Config, hidden: int, *, bias: bool = True) -> Tower:
    """LLaVA's two linears, from as many layers' features as are read."""
    layers = config.get("vision_feature_layer")
    count = len(layers) if isinstance(layers, list) else 1
    width = eyes.hidden(1024) * max(1, count)
    name = "model.multi_modal_projector"
    bias = config.flag("multimodal_projector_bias", default=bias)
    names = (f"{name}.linear_1", f"{name}.linear_2")
    yield from two_linears(names, width, hidden, hidden, bias=bias)


LARGE = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24}
LARGE |= {"image_size": 336, "patch_size": 14}


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
    width, name = eyes.hidden(1024), "model.multi_modal_projector"
    merged = width * config.size("spatial_merge_size", default=2) ** 2
    yield from norm(f"{name}.norm", width, "rms")
    yield from linear(f"{name}.patch_merger.merging_layer", merged, width)
    yield from _projector(config, eyes, hidden, bias=False)


def gemma3(config: Config, eyes: Config, hidden: int) -> Tower:
    """Gemma 3: SigLIP, pooled and normed."""
    if config.get("vision_config") is None:  # the published sizes have no pooling head
        eyes = Config({**eyes.data, "vision_use_head": False})
    yield from vision.siglip(eyes, f"model.{VISION}")
    width, name = eyes.hidden(768), "model.multi_modal_projector"
    dims = (("vision", width), ("vision", hidden))
    yield Weight(f"{name}.mm_input_projection_weight", dims)
    yield from norm(f"{name}.mm_soft_emb_norm", width, "rms")


def gemma4(config: Config, eyes: Config, hidden: int) -> Tower:
    """Gemma 4's own tower, and the small ones' second for sound."""
    yield from vision.gemma4(eyes, f"model.{VISION}")
    width = eyes.hidden(768)
    yield from linear("model.embed_vision.embedding_projection", width, hidden)
    if config.get("audio_config") is not None:
        yield from audio.gemma4(config.section("audio_config"), "model.audio_tower", hidden)


def internvl(config: Config, eyes: Config, hidden: int) -> Tower:
    """InternVL: neighbouring patches are joined before the projector."""
    yield from vision.known_tower(eyes, f"model.{VISION}", "internvl_vision")
    ratio = config.number("downsample_ratio", default=0.5)
    if not 0 < ratio <= 1:
        raise ConfigError(f"model.config.downsample_ratio={ratio} must be above 0 and at most 1")
    joined = eyes.hidden(1024) * int(1 / ratio) ** 2
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
    width = eyes.hidden(1152)
    yield from linear("model.multi_modal_projector.linear", width, hidden, bias=True)


def _qwen(tower: Callable[[Config, str], Tower]) -> Made:
    """A tower that has its projector inside."""

    def tower_weights(config: Config, eyes: Config, hidden: int) -> Iterator[Weight]:
        short = {"out_hidden_size": hidden} if config.get("vision_config") is None else {}
        return tower(Config({**short, **eyes.data}), "model.visual")

    return tower_weights


def _qwen2_vl(config: Config, eyes: Config, hidden: int) -> Tower:
    """Qwen2-VL: `hidden_size` of its tower is the text model's."""
    keys = dict(eyes.data)
    if config.get("vision_config") is None:
        keys["hidden_size"] = hidden
    return vision_qwen.qwen2_vl(Config(keys), "model.visual")


TEXT = {"vocab_size": 131072, "max_position_embeddings": 131072, "sliding_window": None}
MISTRAL3 = sizes(5120, 32768, 40, 32, 8, head_dim=128, **TEXT)
QWEN3 = _qwen(vision_qwen.qwen3_vl)
NESTED = {
    "llava": VisionLanguageFamily("llama", llava),
    "llava_next": VisionLanguageFamily("llama", llava_next),
    "gemma3": VisionLanguageFamily("gemma3_text", gemma3),
    "gemma3n": VisionLanguageFamily("gemma3n_text", None),
    "gemma4": VisionLanguageFamily("gemma4_text", gemma4),
    "gemma4_unified": VisionLanguageFamily("gemma4_unified_text", None),
    "llama4": VisionLanguageFamily("llama4_text", llama4),
    "mllama": VisionLanguageFamily("mllama_text_model", mllama),
    "paligemma": VisionLanguageFamily("gemma", paligemma),
    "internvl": VisionLanguageFamily("qwen2", internvl),
    "internvl_chat": VisionLanguageFamily("qwen2", None),
    "kimi_k25": VisionLanguageFamily("deepseek_v3", kimi),
    "kimi_vl": VisionLanguageFamily("deepseek_v3", None),
    "qwen2_vl": VisionLanguageFamily("qwen2_vl_text", _qwen2_vl),
    "qwen2_5_vl": VisionLanguageFamily("qwen2_5_vl_text", _qwen(vision_qwen.qwen2_5_vl)),
    "qwen3_vl": VisionLanguageFamily("qwen3_vl_text", QWEN3),
    "qwen3_vl_moe": VisionLanguageFamily("qwen3_vl_moe_text", QWEN3),
    "qwen3_5": VisionLanguageFamily("qwen3_5_text", QWEN3),
    "qwen3_5_moe": VisionLanguageFamily("qwen3_5_moe_text", QWEN3),
    "llava(pixtral)": VisionLanguageFamily("mistral", llava, {"sliding_window": None}),
    "mistral3": VisionLanguageFamily("mistral", mistral3, MISTRAL3),
}
FAMILIES = {name: partial(read_nested, nested) for name, nested in NESTED.items()}
