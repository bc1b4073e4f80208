"""Checks plain numbers beside a model whose family fixes them: they must agree with the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...models.arch.arch import Arch, Layer
from ...models.arch.blocks import Attention, Mlp, Moe
from ...models.families.plain import EXPERT_KEYS
from ..text.errors import InputError

# Keys that describe a model of plain numbers; a config.json has other keys for them.
FORM_KEYS = ("gated_mlp", "normalization", "position_embedding", "bias", "dropout", "moe_enabled")
SHAPE_ONLY = (*FORM_KEYS, *EXPERT_KEYS)


def check_facts(arch: Arch, numbers: Mapping[str, Any]) -> None:
    """Raise InputError with one sentence for each number that contradicts the model."""
    problems = list(_problems(arch, numbers))
    if problems:
        raise InputError(problems)


def _problems(arch: Arch, numbers: Mapping[str, Any]) -> Iterator[str]:
    given = {key: value for key, value in numbers.items() if key in SHAPE_ONLY}
    if not given:
        return
    facts = _facts(arch)
    for key, value in given.items():
        name, fact = f"model.{key}={value}", facts.get(key)
        if key not in facts:
            yield f"{name} is for a model of plain numbers; {arch.family} has its own: leave it out"
        elif fact is None:
            yield f"{name}: the {arch.family} model has no experts; leave it out"
        elif fact != value:
            yield f"{name} contradicts the {arch.family} model, which has {fact}; leave it out"


def _facts(arch: Arch) -> dict[str, Any]:
    """The model's values by key; expert keys are None for a model without experts."""
    experts = expert_facts(arch)
    facts: dict[str, Any] = {
        "moe_enabled": bool(experts),
        "normalization": _normalization(arch.layers[-1]),
        "position_embedding": positions(arch),
        **dict.fromkeys(EXPERT_KEYS),
        "shared_expert_intermediate_size": 0,
    }
    gated = getattr(arch.layers[-1].mlp, "gated", None)
    if gated is not None:
        facts["gated_mlp"] = gated
    return facts | experts


def shape_facts(arch: Arch) -> dict[str, Any]:
    """The model's shape by keys of the model section: what the last layer has, where they differ.
    Without experts, their keys are left out.
    """
    mixer, mlp = arch.layers[-1].mixer, arch.layers[-1].mlp
    facts = {key: value for key, value in _facts(arch).items() if value is not None}
    facts |= {
        "num_layers": len(arch.layers),
        "hidden_size": arch.hidden,
        "vocab_size": arch.vocab,
        "tie_word_embeddings": arch.tied,
    }
    if isinstance(mixer, Attention):
        facts |= {
            "num_attention_heads": mixer.heads,
            "num_key_value_heads": mixer.kv_heads,
            "head_dim": mixer.head_dim,
        }
    if isinstance(mlp, Mlp):
        facts |= {"intermediate_size": mlp.ffn}
    return facts


def expert_facts(arch: Arch) -> dict[str, int]:
    """The values of the expert keys, from the last layer with experts; empty for a dense model."""
    experts = [layer.mlp for layer in arch.layers if isinstance(layer.mlp, Moe)]
    if not experts:
        return {}
    last = experts[-1]
    return {
        "num_experts": last.num_experts,
        "top_k": last.top_k,
        "expert_intermediate_size": last.ffn,
        "shared_expert_intermediate_size": last.shared.ffn if last.shared else 0,
    }


def _normalization(layer: Layer) -> str:
    rms = any(norm.impl.startswith("rms") for _, norm in layer.norms)
    return "rmsnorm" if rms else "layernorm"


def positions(arch: Arch) -> str:
    """How positions are embedded: learned, alibi, rope or none."""
    mixers = [mixer for layer in arch.layers for mixer in layer.mixers]
    if any("position" in dict(weight.dims) for weight in arch.embedding):
        return "learned"
    if any(isinstance(mixer, Attention) and mixer.alibi for mixer in mixers):
        return "alibi"
    rotary = (mixer.rotary_width for mixer in mixers)
    return "rope" if any(rotary) else "none"
