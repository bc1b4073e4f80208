"""A model as others change it: a trainer that switches its dropout modules off (those that compare
log-probabilities do), a reward model, which gives each sequence a score in the place of the next
token's logits, and the layers of which servers make a draft for speculative decoding.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from .arch import Arch, Layer
from .blocks import Attention, LatentAttention, Linear

# Where the dropouts of a family that trains are modules (nn.Dropout), which can be switched off;
# the others are calls of a function with the configuration's rate, which stay (transformers 5.17.0
# models/): all of those in FUNCTIONS.
ATTENTION, REST = "attention", "rest"
FUNCTIONS = (
    "apertus arcee baichuan chatglm cohere cohere2 deepseek deepseek_v2 deepseek_v3 dots1 "
    "ernie4_5 exaone4 falcon gemma gemma2 gemma3_text glm glm4 glm4_moe glm4_moe_lite gpt_oss "
    "granite granitemoe granitemoehybrid granitemoeshared hunyuan_v1_dense jais2 jamba kimi_k2 "
    "llama llama4 mamba2 minicpm3 minimax_m2 ministral ministral3 mistral mixtral module mpt "
    "nemotron olmo olmo2 olmo3 olmoe opt phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe seed_oss "
    "smollm3 stablelm starcoder2"
)
MODULES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(FUNCTIONS.split(), ()),
    **dict.fromkeys(("gpt2", "gpt_neo", "gptj", "plain"), (ATTENTION, REST)),
    **dict.fromkeys(("gpt_bigcode", "gpt_neox", "phi"), (REST,)),
    "bloom": (ATTENTION,),
}


def without_dropout(arch: Arch) -> Arch:
    """The model with its dropout modules off (trl 1.16.0 trainer/utils.py
    disable_dropout_in_model).
    """
    kinds = MODULES[arch.family]
    rest = {"embedding_dropout": 0.0} if REST in kinds else {}
    return replace(arch, layers=tuple(_layer(one, kinds) for one in arch.layers), **rest)


def _layer(layer: Layer, kinds: tuple[str, ...]) -> Layer:
    mixer = {"dropout": ATTENTION, "residual_dropout": REST}
    off = {
        "mixer": _zeroed(layer.mixer, [name for name, kind in mixer.items() if kind in kinds]),
        "mlp": _zeroed(layer.mlp, ["dropout"] if REST in kinds else []),
    }
    return replace(layer, **off, **({"dropout": 0.0} if REST in kinds else {}))


def _zeroed(part: Any, names: list[str]) -> Any:
    """The part of a layer with these rates at 0, where it has them."""
    own = [name for name in names if name in getattr(part, "__struct_fields__", ())]
    return replace(part, **dict.fromkeys(own, 0.0)) if own else part


# Families with a sequence classifier whose head is one projection of the last hidden states
# (transformers 5.17.0 modeling_layers.py GenericForSequenceClassification, or the same by hand).
SCORED_FAMILIES = (
    "plain arcee bloom deepseek_v2 deepseek_v3 exaone4 falcon gemma gemma2 gemma3_text glm glm4 "
    "gpt2 gpt_bigcode gpt_neo gpt_neox gpt_oss gptj hunyuan_v1_dense hunyuan_v1_moe jamba llama "
    "minicpm3 minimax ministral ministral3 mistral mixtral mpt nemotron olmo olmo2 olmo3 phi phi3 "
    "phimoe qwen2 qwen2_moe qwen3 qwen3_5_text qwen3_moe qwen3_next seed_oss smollm3 stablelm "
    "starcoder2"
)
SCORED = frozenset(SCORED_FAMILIES.split())


def scored(arch: Arch) -> Arch:
    """The model with a projection to one number, `score`, as its head."""
    head = Linear("score", ("hidden", arch.hidden), ("labels", 1))
    return replace(arch, head=head, head_extra=(), tied=False, logit_softcap=None, logit_scale=None)


EAGLE3_VOCAB = 32000  # rows of an EAGLE-3 draft's head, in every draft that is published


MIXERS = (Attention, LatentAttention)


def has_attention(arch: Arch) -> bool:
    """Whether some layer has attention, as a model's own draft has."""
    return any(isinstance(layer.mixer, MIXERS) for layer in arch.layers)


def last_attention_layer(arch: Arch) -> Layer:
    """The last layer with attention; a multi-token-prediction layer is like it."""
    return next(layer for layer in reversed(arch.layers) if isinstance(layer.mixer, MIXERS))


def layers_alone(arch: Arch, layers: tuple[Layer, ...]) -> Arch:
    """A model of these layers, without embedding, final norm and head; it keeps the tower."""
    bare = replace(arch, layers=layers, windows=(), layer_names=(), embedding=(), head_extra=())
    return replace(bare, embedding_norm=None, final_norm=None, head=None)
