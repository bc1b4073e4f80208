"""The arguments of Megatron-LM's pretrain_gpt.py as keys of a run file (core_r0.19.0
megatron/training/arguments.py, by the names that argparse stores).

The model that the arguments of pretrain_gpt.py describe, as keys of the model section
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

from ...models.families.config import MOST_LAYERS
from ...runfile.program import Program, Section, Setup, Translation
from ..translation.arguments import tables
from ..translation.shapes import shape_problems

LATENT, PATTERN = "multi_latent_attention", "moe_layer_freq"
NEEDS_CONFIG = (LATENT, "qk_layernorm", "add_qkv_bias")
RANKS: dict[str, str] = tables(__file__)["ranks"]
CONFIG: dict[str, str] = tables(__file__)["config"]  # keys of a config.json that plain numbers say
# What a model with such a part has otherwise.
USUAL: dict[str, Any] = tables(__file__)["usual"]
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


TABLES = tables(__file__)
Values = Mapping[str, Any]
TP, PP, CP = (f"{kind}_parallel_size" for kind in ("tensor_model", "pipeline_model", "context"))
# Arguments whose name and meaning are those of an engine key.
SAME = tuple(TABLES["same"])
# Engine keys whose name differs from the argument's.
RENAMED: dict[str, str] = TABLES["renamed"]
EXPERTS = tuple(TABLES["experts"])
RECOMPUTE = ("recompute_method", "recompute_num_layers", "recompute_modules")
OPTIMIZERS: dict[str, str] = TABLES["optimizers"]  # of a run file, by the script's names
LOSSES: dict[str, str] = TABLES["losses"]  # the same, by cross_entropy_fusion_impl


def translate(program: Program, values: Values, setup: Setup) -> Translation:
    """The keys of the script; its engine is megatron_lm."""
    result = Translation(problems=_missing(values, setup))
    if result.problems:
        return result
    _add_model(program, values, setup, result)
    result.training |= {
        "batch_size": values["micro_batch_size"],
        "seq_len": values["seq_length"],
        "gradient_clipping": values["clip_grad"],
        "precision": _precision(values),
    }
    _add_optimizer(values, result)
    if values["cross_entropy_loss_fusion"]:
        result.training["loss"] = _word("cross_entropy_fusion_impl", LOSSES, values, result)
    if values["ckpt_format"] == "torch":  # gathers what is sharded (checkpointing.py)
        result.training["saving"] = "full_state_dict"
    if values["bf16"] and values["fp16"]:
        result.problems.append("program.args: bf16 and fp16 are both there; leave one out")
    result.training |= _recompute(values)
    if values["moe_aux_loss_coeff"]:
        kept = "the scores of routers that the auxiliary loss keeps are not counted"
        result.warnings.append(f"program.args.moe_aux_loss_coeff is above 0: {kept}")
    if values["transformer_impl"] == "transformer_engine":
        _add_engine_notes(values, setup, result)
    _add_parallelism(values, setup, result)
    result.engine |= _engine(values, setup)
    return result


def _missing(values: Values, setup: Setup) -> list[str]:
    """Arguments that the script needs (arguments.py validate_args)."""
    needed = ("micro_batch_size", "seq_length", *(() if setup.has_model else NEEDED))
    why = {"vocab_size": ", and the size of the tokenizer is not known here"}
    return [
        f"program.args.{name} is missing{why.get(name, '')}; Megatron-LM needs it"
        for name in needed
        if not values[name]
    ]


def _add_model(program: Program, values: Values, setup: Setup, result: Translation) -> None:
    """The model of the arguments, where the run file has none; else what is given must agree."""
    if setup.has_model:
        result.problems += shape_problems(given_shape(program.args, values), NAMES, setup)
        result.assumed.append(
            "the model section decides what program.args leaves out of the model's shape, dropout "
            "too: Megatron-LM's own default is 0.1"
        )
        return
    result.problems += unknown_words(values)
    if not result.problems:
        result.model |= whole_model(values)


def _add_engine_notes(values: Values, setup: Setup, result: Translation) -> None:
    """What is modelled of Transformer Engine in another way than the script's default."""
    shape = setup.model().shape if setup.has_model else {"moe_enabled": values["num_experts"]}
    experts = shape.get("moe_enabled")
    if experts and not values["moe_grouped_gemm"]:
        why = "experts one after the other are modelled with transformer_impl='local' only"
        result.problems.append(f"program.args.moe_grouped_gemm=false: {why}; set it to true")
    if values["create_attention_mask_in_dataloader"]:
        mask = "a mask of seq_length x seq_length bytes for each sequence is on the GPU"
        result.warnings.append(
            f"program.args.create_attention_mask_in_dataloader=true: {mask}, which is not counted "
            "with Transformer Engine; set it to false, as attention needs no such mask"
        )


def _precision(values: Values) -> str:
    return "bf16_mixed" if values["bf16"] else "fp16_mixed" if values["fp16"] else "fp32"


def _add_optimizer(values: Values, result: Translation) -> None:
    name = _word("optimizer", OPTIMIZERS, values, result)  # Adam decouples the weight decay
    momentum = name == OPTIMIZERS["sgd"] and values["sgd_momentum"]
    result.training["optimizer"] = "sgd_momentum" if momentum else name


def _word(argument: str, known: Mapping[str, str], values: Values, result: Translation) -> str:
    """A word of a run file for one of the script's; another one is a problem."""
    value = values[argument]
    if value not in known:
        choice = " or ".join(map(repr, known))
        result.problems.append(f"program.args.{argument}={value!r} is not modelled; use {choice}")
        return str(value)
    return known[value]


def _recompute(values: Values) -> Section:
    """Recompute; --recompute-activations is the selective kind (arguments.py:589)."""
    kind = "selective" if values["recompute_activations"] else values["recompute_granularity"]
    if kind is None:
        return {}
    keys = {name: values[name] for name in RECOMPUTE if values[name] is not None}
    return {"recompute": {"recompute_granularity": kind, **keys}}


def _engine(values: Values, setup: Setup) -> Section:
    """Engine keys; only those that differ from the script's defaults, or that are not None.

    bf16 sums gradients in fp32 unless --grad-reduce-in-bf16 (arguments.py:1186).
    """
    keys = {name: values[name] for name in SAME}
    keys |= {key: values[name] for key, name in RENAMED.items()}
    if values["apply_query_key_layer_scaling"]:  # core/transformer/transformer_config.py:2111
        keys["attention_softmax_in_fp32"] = True
    if values["grad_reduce_in_bf16"]:
        keys["accumulate_allreduce_grads_in_fp32"] = False
    elif values["accumulate_allreduce_grads_in_fp32"]:
        keys["accumulate_allreduce_grads_in_fp32"] = True
    if values["num_experts"] is None and not setup.has_model:
        for name in EXPERTS:  # the script takes them without experts, too
            keys.pop(name)
    if values["transformer_impl"] == "local":  # local layers have an attention of their own
        keys.pop("attention_backend")
    kept = {key: value for key, value in keys.items() if value is not None}
    return {"type": "megatron_lm", **kept}


def _add_parallelism(values: Values, setup: Setup, result: Translation) -> None:
    """Sizes of the groups; the rest of the GPUs are data-parallel."""
    null = [name for name in (TP, PP, CP) if values[name] is None]
    if null:
        result.problems.append(f"program.args.{null[0]} is null; give a whole number, such as 1")
        return
    part = values[TP] * values[PP] * values[CP]
    if setup.num_gpus % part:
        what = f"program.args: {TP} x {PP} x {CP} = {part} do not divide {setup.num_gpus} GPUs"
        result.problems.append(f"{what}; set hardware.num_gpus to a multiple")
        return
    copies = setup.num_gpus // part
    result.parallelism |= {
        "data_parallel_size": copies,
        "tensor_parallel_size": values[TP],
        "pipeline_parallel_size": values[PP],
        "context_parallel_size": values[CP],
        "expert_parallel_size": values["expert_model_parallel_size"],
        "sequence_parallel": bool(values["sequence_parallel"] and values[TP] > 1),
    }
    _add_chunks(values, setup, result)
    each = values["micro_batch_size"] * copies
    whole = values["global_batch_size"] or each
    if whole % each:
        fix = f"must be a multiple of micro_batch_size x data-parallel size = {each}"
        result.problems.append(f"program.args.global_batch_size={whole} {fix}")
    result.training["gradient_accumulation_steps"] = whole // each


def _add_chunks(values: Values, setup: Setup, result: Translation) -> None:
    """Chunks of each stage (arguments.py:920-945)."""
    layers = values["num_layers"] or setup.model().shape.get("num_layers", 0)
    each, chunks = (
        values[f"num_{name}"]
        for name in ("layers_per_virtual_pipeline_stage", "virtual_stages_per_pipeline_rank")
    )
    if each and chunks:
        names = "num_layers_per_virtual_pipeline_stage or num_virtual_stages_per_pipeline_rank"
        result.problems.append(f"program.args: give {names}, not both")
    elif each and layers % (values[PP] * each):
        what = f"program.args.num_layers_per_virtual_pipeline_stage={each}"
        result.problems.append(f"{what} must divide the layers of a stage, {layers // values[PP]}")
    elif each:
        chunks = layers // values[PP] // each
    if chunks and chunks > 1:
        result.parallelism["virtual_pipeline_size"] = chunks
