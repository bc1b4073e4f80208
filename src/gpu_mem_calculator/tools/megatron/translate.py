"""The arguments of Megatron-LM's pretrain_gpt.py as keys of a run file (core_r0.19.0
megatron/training/arguments.py, by the names that argparse stores).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...runfile.program import Program, Section, Setup, Translation
from ..translation.arguments import tables
from ..translation.shapes import shape_problems
from .shape import NAMES, NEEDED, given_shape, unknown_words, whole_model

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
        if values[name] is None
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
