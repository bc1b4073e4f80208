"""A training run of LLaMA-Factory as a `program` section, and what the program cannot say.

Its arguments are its own and those of transformers' TrainingArguments. A stage is the program of
one of transformers' or TRL's trainers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...runfile.text.errors import InputError
from ..reading.named_files import NamedFiles
from ..reading.reading import Could, Reading, Section
from ..reading.trainer_arguments import (
    OLDER,
    TRAINER,
    deepspeed_data,
    frozen_tower,
    is_zero3,
    lora_keys,
    sampling_data,
    trainer_args,
)
from ..releases.tool_at import ToolAt
from ..translation.arguments import (
    ArgumentTable,
    Values,
    argument_data,
    argument_table,
    filled,
    tables,
)
from .launch import ALLOCATOR, FactoryProcesses, fsdp_version, hardware

FOLDER = Path(__file__).parent
OWN_TABLE = argument_table("arguments", FOLDER)
TABLE: ArgumentTable = {**OLDER, **TRAINER, **OWN_TABLE}  # transformers 4.55 to 5.8 is accepted
BUNDLED = argument_data("deepspeed", FOLDER)  # the files of examples/deepspeed
TABLES = tables(__file__)
STAGES: Mapping[str, str] = TABLES["stages"]  # the program of each
ATTENTION: Mapping[str, str] = TABLES["attention"]
# What is estimated as something else: why, and how the run could differ.
LIMITS: Mapping[str, tuple[str, Could]] = TABLES["limits"]
PLAIN = STAGES["sft"]
NO_REFERENCE = ("orpo", "simpo")
FUSED, PARTS = "W_pack", ("q_proj", "k_proj", "v_proj")  # of Baichuan, counted as Llama's
FUSED_WHY = "one adapter of a fused matrix is counted as three, which have two more matrices A"
BITSANDBYTES, BITS = "bnb", (4, 8)
OWN_CHECKPOINTS = ("gradient_checkpointing", "gradient_checkpointing_kwargs", "deepspeed")
OWN_LOSSES = ("use_dft_loss", "use_asft_loss", "use_eaft_loss")
MULTIPLE = 8  # the collators pad to it (train/*/workflow.py); that of stage pt does not


def training_run(
    reading: Reading,
    kept: Values,
    values: Values,
    files: NamedFiles,
    launch: FactoryProcesses,
    at: ToolAt,
) -> None:
    """Add the sections of a training run."""
    run = reading.run
    run |= filled(hardware=hardware(launch, values))
    refused = _refused_program(values)
    if refused:
        run["program"] = {"tool": refused}
        return
    _name_limits(reading, values)
    deepspeed = deepspeed_data(reading, values["deepspeed"], files, BUNDLED)
    program: Section = {"tool": STAGES[values["stage"]]}
    program["args"] = trainer_args(kept, without=OWN_CHECKPOINTS)
    program["args"] |= _checkpoints(values, launch, at)
    if values["enable_liger_kernel"]:
        program["args"] |= _liger(values)
    program["load"] = _loading(reading, values, launch, deepspeed, at)
    program["data"] = {"seq_len": sequence_length(values), **sampling_data(kept)}
    program |= filled(accelerate=dict(launch.accelerate or {}), deepspeed=deepspeed)
    run["program"] = program
    older = launch.allocator == ALLOCATOR and at.before("0.9.3")  # cli.py has set it since
    training = filled(pytorch_alloc_conf="" if older else launch.allocator)
    training |= _adapters(reading, program, values)
    training |= _stage(reading, program, values)
    training |= _packing(reading, values)
    training |= _tower(reading, values, deepspeed)
    run |= filled(training=training)
    length = program["data"]["seq_len"]
    reading.assumed.append(f"every sequence has {length} tokens, the most that cutoff_len allows")


def sequence_length(values: Values) -> int:
    """Tokens of a row: cutoff_len, padded to a multiple of 8.

    hparams/data_args.py takes one off where packing is given, and data/processor/supervised.py
    adds it again; stage pt packs by default, without either.
    """
    length = int(values["cutoff_len"])
    if values["stage"] == "pt":
        return length - 1 if values["packing"] else length
    return -(-length // MULTIPLE) * MULTIPLE


def _liger(values: Values) -> Section:
    """Liger's kernels; a loss of LLaMA-Factory's own gets logits, so Liger's is not used
    (train/sft/trainer.py compute_loss_func).
    """
    own = any(values[name] for name in OWN_LOSSES)
    config = {"liger_kernel_config": {"fused_linear_cross_entropy": False}} if own else {}
    return {"use_liger_kernel": True, **config}


def _refused_program(values: Values) -> str:
    """The name of a program that cannot be answered; empty where it can."""
    if values["use_kt"]:
        return "ktransformers"
    if values["stage"] == "ppo":
        return "llamafactory.ppo"
    return "" if values["do_train"] else "llamafactory.predict"


def _checkpoints(values: Values, launch: FactoryProcesses, at: ToolAt) -> Section:
    """Recompute is on unless it is switched off, and reentrant unless FSDP is version 2, which was
    not asked before 0.9.4 (model_utils/checkpointing.py prepare_model_for_training). Trainer's own
    switch calls the same function once more.
    """
    if values["gradient_checkpointing"]:
        given = values["gradient_checkpointing_kwargs"] or {"use_reentrant": True}
        return {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": dict(given)}
    if values["disable_gradient_checkpointing"]:
        return {"gradient_checkpointing": False}
    second = fsdp_version(launch, values) == 2 and not at.before("0.9.4")
    reentrant = bool(values["use_reentrant_gc"]) and not second
    kinds = {"use_reentrant": reentrant}
    return {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": kinds}


def _loading(
    reading: Reading,
    values: Values,
    launch: FactoryProcesses,
    deepspeed: Section | None,
    at: ToolAt,
) -> Section:
    """from_pretrained takes the checkpoint's dtype, and puts the weights on the GPU unless they are
    sharded (model/patcher.py patch_config). Weights that are trained are then cast to fp32, but
    not under pure_bf16, BAdam and ZeRO-3 (model/adapter.py init_adapter).

    Before 0.9.4 it takes the dtype of the computation, and transformers' own default where weights
    are sharded and not quantized; FSDP's are not cast before 0.9.3.
    """
    zero3 = is_zero3(deepspeed)
    sharded = zero3 or fsdp_version(launch, values)
    trained = values["finetuning_type"] in ("full", "freeze")
    kept = values["pure_bf16"] or values["use_badam"] or zero3
    kept = kept or (sharded and at.before("0.9.3"))
    load: Section = {"dtype": "float32" if trained and not kept else "auto"}
    if at.before("0.9.4") and load["dtype"] == "auto":
        load = _older_dtype(values, plain=bool(sharded) and values["quantization_bit"] is None)
    elif values["fp16"] and load["dtype"] == "auto" and values["quantization_bit"] is None:
        load["dtype"] = "float16"
        reading.limit("fp16=true", *LIMITS["fp16"])
    if values["flash_attn"] in ATTENTION:
        load["attn_implementation"] = ATTENTION[values["flash_attn"]]
    elif values["flash_attn"] != "auto":
        choice = ", ".join(("auto", *ATTENTION))
        raise InputError(f"flash_attn={values['flash_attn']!r} must be one of {choice}")
    if values["low_cpu_mem_usage"] and not sharded:
        load["device_map"] = {"": 0}
    return load


def _older_dtype(values: Values, *, plain: bool) -> Section:
    """The dtype of the computation, or transformers' own (0.9.2 model/patcher.py patch_config)."""
    if plain:
        return {}
    half = values["bf16"] or values["pure_bf16"]
    return {"dtype": "bfloat16" if half else "float16" if values["fp16"] else "auto"}


def _name_limits(reading: Reading, values: Values) -> None:
    """Add a limit for each method that is estimated as another one."""
    kind, layers = values["finetuning_type"], values["freeze_trainable_layers"]
    if kind == "freeze":
        which = "freeze the first layers" if layers > 0 else "freeze"
        reading.limit("finetuning_type=freeze", *LIMITS[which])
    if kind == "oft":
        reading.limit("finetuning_type=oft", *LIMITS["oft"])
    adapter = values["adapter_name_or_path"]
    if adapter and not values["create_new_adapter"]:
        reading.limit(f"adapter_name_or_path={adapter}", *LIMITS["adapter"])


def _packing(reading: Reading, values: Values) -> Section:
    """neat_packing: documents of a row do not see each other. Without FlashAttention the collator
    makes a mask of the compute dtype (data/collator.py prepare_4d_attention_mask).
    """
    if not values["neat_packing"] or values["flash_attn"] == "fa2":
        return {}
    reading.limit("neat_packing=true", *LIMITS["neat_packing"])
    return {"packed_documents": 2}


def _tower(reading: Reading, values: Values, deepspeed: Section | None) -> Section:
    """A vision tower is not trained unless asked for (model_utils/visual.py)."""
    if not values["freeze_vision_tower"] or values["finetuning_type"] not in ("full", "freeze"):
        return {}
    return frozen_tower(reading, "freeze_vision_tower", values["model_name_or_path"], deepspeed)


def _stage(reading: Reading, program: Section, values: Values) -> Section:
    """Complete a program by its stage; returns keys of `training` beside it."""
    stage, args = values["stage"], program["args"]
    if STAGES[stage] == PLAIN:
        if "peft" in program:
            program["peft"]["task_type"] = "CAUSAL_LM"
        return {}
    reading.limit(f"stage={stage}", *LIMITS["a value head" if stage == "rm" else "all logits"])
    args |= {"max_length": program["data"]["seq_len"], "bf16": bool(values["bf16"])}
    if values["enable_liger_kernel"] and stage == "rm":
        args["liger_kernel_config"] = {"fused_linear_cross_entropy": False}
    training: Section = {}
    if stage == "dpo" and values["pref_loss"] in NO_REFERENCE:
        training["reference_model"] = False
    if "peft" in program and "quantization" in program:  # TRL would cast these adapters to bf16
        training["lora"] = training_lora(values)
    return training


def _adapters(reading: Reading, program: Section, values: Values) -> Section:
    """Add `peft` and `quantization` to a program; returns keys of `training` beside it."""
    if values["finetuning_type"] in ("lora", "oft"):
        program["peft"] = _lora(values)
        if FUSED in str(values["lora_target"]):
            reading.limit(f"lora_target={FUSED}", FUSED_WHY, "less")
    if values["quantization_bit"] is None:
        return {}
    if values["quantization_method"] != BITSANDBYTES:
        key = f"quantization_method={values['quantization_method']}"
        reading.limit(key, *LIMITS["quantization_method"])
    program["quantization"] = _bitsandbytes(values)
    # PEFT's prepare_model_for_kbit_training is not called (model/loader.py)
    return {"upcast_unquantized": False}


def _lora(values: Values) -> Section:
    """LoraConfig; `all` are the linear modules but the head (model_utils/misc.py)."""
    lora = values["finetuning_type"] == "lora"
    target = values["lora_target"] if lora else "all"
    if target is None:
        raise InputError("lora_target is null; it must name modules, or be all")
    names = [name.strip() for name in target.split(",")] if isinstance(target, str) else target
    names = [one for name in names for one in (PARTS if name == FUSED else (name,))]
    peft: Section = {
        "r": values["lora_rank"] if lora else 8,
        "target_modules": "all-linear" if names == ["all"] else names,
    }
    own = filled(lora_dropout=values["lora_dropout"], use_dora=values["use_dora"])
    return peft | (own if lora else {})


def _bitsandbytes(values: Values) -> Section:
    """BitsAndBytesConfig (model_utils/quantization.py configure_quantization)."""
    bits = values["quantization_bit"]
    if bits not in BITS and values["quantization_method"] == BITSANDBYTES:
        raise InputError(f"quantization_bit={bits}: bitsandbytes has 4 and 8 bits; use one of them")
    if bits > 4:
        return {"load_in_8bit": True}
    half = values["fp16"] and not values["bf16"] and not values["pure_bf16"]
    compute = "float16" if half else "bfloat16"
    return {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": values["quantization_type"],
        "bnb_4bit_use_double_quant": values["double_quantization"],
        "bnb_4bit_compute_dtype": compute,
        "bnb_4bit_quant_storage": compute,
    }


def training_lora(values: Values) -> Section:
    """Adapters as `training.lora` has them, in fp32 (model/adapter.py init_adapter)."""
    return lora_keys(_lora(values), "fp32")
