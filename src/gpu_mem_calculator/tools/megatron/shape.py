"""The model that the arguments of pretrain_gpt.py describe, as keys of the model section.

Megatron-LM core_r0.19.0 megatron/training/arguments.py validate_args, argument_utils.py
core_transformer_config_from_args.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...runfile.program import Section
from ..translation.arguments import tables
from .family import config_problems, family_config, needs_config

Values = Mapping[str, Any]
# Keys of the model section, and the arguments that decide them.
NAMES: dict[str, str] = tables(__file__)["names"]
ALSO = ("attention_dropout", "group_query_attention", "use_rotary_position_embeddings")
NEEDED = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size")
NORMS = {"LayerNorm": "layernorm", "RMSNorm": "rmsnorm"}
POSITIONS = {"learned_absolute": "learned", "rope": "rope", "none": "none"}


def whole_model(values: Values) -> Section:
    """The model section, with every default of the script."""
    plain = plain_numbers(values)
    return {"config": family_config(values, plain)} if needs_config(values) else plain


def plain_numbers(values: Values) -> Section:
    """The model in plain numbers."""
    hidden, heads = values["hidden_size"], values["num_attention_heads"]
    keys = {key: _value(key, values) for key in NAMES}
    usual = int(8 * hidden / 3 / 64) * 64 if values["swiglu"] else 4 * hidden
    keys["intermediate_size"] = keys["intermediate_size"] or usual
    keys["num_key_value_heads"] = keys["num_key_value_heads"] or heads
    if values["num_experts"] is None:
        for key in ("top_k", "expert_intermediate_size", "shared_expert_intermediate_size"):
            keys.pop(key)
    else:
        keys["moe_enabled"] = True
        keys["expert_intermediate_size"] = (
            keys["expert_intermediate_size"] or keys["intermediate_size"]
        )
    return {key: value for key, value in keys.items() if value is not None}


def given_shape(given: Values, values: Values) -> Section:
    """Keys of the model section for the arguments that are given."""
    found: Section = {}
    for key, name in NAMES.items():
        asked = name in given or (key == "num_key_value_heads" and "group_query_attention" in given)
        asked = asked or (key == "position_embedding" and ALSO[2] in given)
        value = _value(key, values) if asked else None
        if value is not None:
            found[key] = value
    for key in ("bias", "dropout", "max_seq_len"):  # families have their own
        found.pop(key, None)
    if values["multi_latent_attention"]:
        for key in ("num_key_value_heads", "head_dim"):
            found.pop(key, None)
    return found


def _value(key: str, values: Values) -> Any:
    value = values[NAMES[key]]
    if key == "num_key_value_heads":
        return value if values["group_query_attention"] else values["num_attention_heads"]
    if key == "normalization":
        return NORMS.get(value)
    if key == "position_embedding":
        return "rope" if values[ALSO[2]] else POSITIONS.get(value)
    return not value if key == "tie_word_embeddings" else value


def unknown_words(values: Values) -> Iterator[str]:
    """A sentence for each kind of norm or position that is not modelled, and for two dropouts."""
    for name, words in (("normalization", NORMS), ("position_embedding_type", POSITIONS)):
        if values[name] not in words:
            choice = " or ".join(map(repr, words))
            yield f"program.args.{name}={values[name]!r} is not modelled; use {choice}"
    if values["hidden_dropout"] != values["attention_dropout"]:
        yield "program.args: hidden_dropout and attention_dropout must be the same; set both"
    if needs_config(values):
        yield from config_problems(values, plain_numbers(values))
