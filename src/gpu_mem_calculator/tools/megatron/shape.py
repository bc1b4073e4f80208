"""The model that the arguments of pretrain_gpt.py describe, as keys of the model section
(Megatron-LM core_r0.19.0 megatron/training/arguments.py validate_args, argument_utils.py
core_transformer_config_from_args).

A model that plain numbers cannot say is a config.json: latent attention
(core/transformer/multi_latent_attention.py MLASelfAttention), norms of queries and keys, biases of
qkv alone (core/transformer/attention.py SelfAttention: q_layernorm, k_layernorm, add_qkv_bias),
dense layers before those with experts (core/models/gpt/gpt_layer_specs.py:470 moe_layer_freq).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from ...runfile.program import Section
from ..translation.arguments import tables

LATENT, PATTERN = "multi_latent_attention", "moe_layer_freq"
NEEDS_CONFIG = (LATENT, "qk_layernorm", "add_qkv_bias")
RANKS: dict[str, str] = tables(__file__)["ranks"]
MOST_LAYERS = 10_000
CONFIG: dict[str, str] = tables(__file__)["config"]  # keys of a config.json that plain numbers say
# What a model with such a part has otherwise.
USUAL: dict[str, Any] = tables(__file__)["usual"]
Values = Mapping[str, Any]
# Keys of the model section, and the arguments that decide them.
NAMES: dict[str, str] = tables(__file__)["names"]
ALSO = ("attention_dropout", "group_query_attention", "use_rotary_position_embeddings")
NEEDED = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size")
NORMS = {"LayerNorm": "layernorm", "RMSNorm": "rmsnorm"}
POSITIONS = {"learned_absolute": "learned", "rope": "rope", "none": "none"}


def needs_config(values: Values) -> bool:
    """Whether the model has a part that plain numbers cannot say."""
    return any(values[name] for name in NEEDS_CONFIG) or _first_dense(values) != 0


def family_config(values: Values, plain: Section) -> Section:
    """The config.json of the model; `plain` are its plain numbers."""
    config: Section = {
        **{name: plain[key] for name, key in CONFIG.items()},
        "head_dim": values["kv_channels"] or values["hidden_size"] // values["num_attention_heads"],
        "max_position_embeddings": values["max_position_embeddings"] or values["seq_length"],
        "attention_dropout": values["attention_dropout"],
    }
    if values["num_experts"]:
        config |= _experts(values, plain)
    if values[LATENT]:
        del config["num_key_value_heads"], config["head_dim"]
        ranks = {key: values[name] for key, name in RANKS.items()}
        if not values["num_experts"]:
            config["first_k_dense_replace"] = values["num_layers"]
        return {"model_type": "deepseek_v3", **config, **ranks}
    if values["num_experts"]:
        bias = bool(values["add_qkv_bias"])
        normed = bool(values["qk_layernorm"])
        own = {"attention_bias": bias, "use_qk_norm": normed, "partial_rotary_factor": 1.0}
        return {"model_type": "glm4_moe", **config, **own}
    return {"model_type": "qwen3" if values["qk_layernorm"] else "qwen2", **config}


def _experts(values: Values, plain: Section) -> Section:
    each = plain["expert_intermediate_size"]
    shared = values["moe_shared_expert_intermediate_size"] or 0
    return {
        "n_routed_experts": values["num_experts"],
        "num_experts_per_tok": values["moe_router_topk"],
        "moe_intermediate_size": each,
        "n_shared_experts": shared // each,
        "first_k_dense_replace": _first_dense(values) or 0,
    }


def _first_dense(values: Values) -> int | None:
    """Dense layers before those with experts; None where they are mixed in another way."""
    pattern = layer_pattern(values[PATTERN], values["num_layers"] or 0)
    if values["num_experts"] is None or pattern is None:
        return 0 if values["num_experts"] is None else None
    first = len(pattern) - sum(pattern)
    return first if pattern == [0] * first + [1] * sum(pattern) else None


def layer_pattern(value: Any, layers: int) -> list[int] | None:
    """1 for each layer with experts: from a list, its text, or the distance between such layers
    (core/models/gpt/gpt_layer_specs.py get_gpt_decoder_layer_specs).
    """
    if isinstance(value, str):
        try:
            value = _literal(ast.parse(value.strip(), mode="eval").body)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
    if isinstance(value, bool) or not isinstance(value, int | list):
        return None
    if isinstance(value, int):
        if value < 1 or layers > MOST_LAYERS:
            return None
        return [int(place % value == 0) for place in range(layers)]
    return value if all(one in (0, 1) for one in value) else None


def _literal(node: ast.expr) -> Any:
    """A number, a list, a list times a number, or lists one after the other."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.List):
        return [_literal(one) for one in node.elts]
    if not isinstance(node, ast.BinOp):
        raise ValueError
    left, right = _literal(node.left), _literal(node.right)
    if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
        return left + right
    repeats = isinstance(left, list) and isinstance(right, int) and isinstance(node.op, ast.Mult)
    if repeats and len(left) * right <= MOST_LAYERS:
        return left * right
    raise ValueError


def config_problems(values: Values, plain: Section) -> Iterator[str]:
    """A sentence for each choice that is not modelled together with such a part."""
    names = [name for name in NEEDS_CONFIG if values[name]] or [PATTERN]
    what = f"program.args.{names[0]}"
    pattern = layer_pattern(values[PATTERN], values["num_layers"])
    if values["num_experts"] and pattern is not None and len(pattern) != values["num_layers"]:
        count = f"{len(pattern)} layers; num_layers is {values['num_layers']}"
        yield f"{what}={values[PATTERN]!r} has {count}"
    elif values["num_experts"] and _first_dense(values) is None:
        yield (
            f"program.args.{PATTERN}={values[PATTERN]!r}: dense layers are modelled before those "
            "with experts only, such as ([0]*3+[1]*58)"
        )
    other = [f"{key}={plain.get(key)!r}" for key, value in USUAL.items() if plain.get(key) != value]
    if other:
        yield (
            f"{what} is modelled with RMSNorm, SwiGLU, rotary positions and no biases, and "
            f"{', '.join(other)} is given; give the model by name"
        )
    if values["hidden_dropout"]:
        yield f"{what} is modelled without dropout; set hidden_dropout to 0"
    shared, each = (plain.get(f"{kind}expert_intermediate_size") for kind in ("shared_", ""))
    if shared and each and shared % each:
        yield (
            f"program.args.moe_shared_expert_intermediate_size={shared} is not a multiple of "
            f"moe_ffn_hidden_size={each}, as it must be with {names[0]}"
        )


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
        width = keys["expert_intermediate_size"] or keys["intermediate_size"]
        keys |= {"moe_enabled": True, "expert_intermediate_size": width}
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
    left_out = {"bias", "dropout", "max_seq_len"}  # families have their own
    left_out |= {"num_key_value_heads", "head_dim"} if values[LATENT] else set()
    return {key: value for key, value in found.items() if key not in left_out}


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
