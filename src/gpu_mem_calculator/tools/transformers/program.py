"""A run as a program of Hugging Face's tools: the inverse of `tools/trainer/`.

What a tool cannot say stays unsaid here; `unsaid.py` finds it by translating the program back.
"""

from __future__ import annotations

from typing import Any

from ...pytorch.modelling.huggingface.liger import LIGER
from ...run.recompute import FULL
from ...run.run import Run
from ...runfile.config import RunFile
from ...runfile.other_names import OPTIM
from ...runfile.read import as_dict
from ...runfile.resolve.resolved_run import ResolvedRun
from ..translation.arguments import FREE, Values, argument_table, filled
from ..translation.tools import TOOLS
from .launch import launch_sections, mixed_precision

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
CLIPPING = 1.0  # max_grad_norm of transformers
MOMENTUM = "momentum=0.9"


def program_sections(title: str, tool: str, file: RunFile, resolved: ResolvedRun) -> dict[str, Any]:
    """The `program` section of a run, in the names of a tool on top of transformers.Trainer.

    title: of the tool, for sentences
    """
    run = resolved.run
    program: dict[str, Any] = {
        "tool": tool,
        "args": {**free_arguments(tool, file), **trainer_arguments(file, run)},
        "load": _load(run),
        "data": {"seq_len": int(run.seq)},
    }
    if run.adapter is not None:
        program["peft"] = peft_arguments(file, run)
    if run.quantization:
        program["quantization"] = quantization_arguments(run)
    return {**program, **launch_sections(title, file, resolved)}


def program_run(file: RunFile, program: dict[str, Any]) -> dict[str, Any]:
    """The sections of a run file with a program."""
    return {"model": as_dict(file.model), "program": program}


def beyond_sft(run: Run) -> str:
    """What a run has that supervised fine-tuning has not; empty where it is one."""
    if run.rollout is not None:
        return "generation"
    return "a reference model" if run.reference else "a reward" if run.loss == "reward" else ""


def launch_arguments(program: Values) -> dict[str, Any]:
    """TrainingArguments that have DeepSpeed's JSON or FSDP's settings inside."""
    if program.get("deepspeed"):
        return {"deepspeed": program["deepspeed"]}
    if program.get("fsdp_config"):
        return {"fsdp": True, "fsdp_config": program["fsdp_config"]}
    return {}


def free_arguments(tool: str, file: RunFile) -> dict[str, Any]:
    """Arguments without effect on memory that the run's own program has, such as learning_rate."""
    if file.program is None:
        return {}
    table = argument_table(TOOLS[tool].arguments)
    return {
        name: value
        for name, value in file.program.args.items()
        if name in table and table[name].effect == FREE
    }


def trainer_arguments(file: RunFile, run: Run) -> dict[str, Any]:
    """TrainingArguments that change memory, each one written out."""
    clipping = file.training.gradient_clipping
    arguments: dict[str, Any] = {
        "per_device_train_batch_size": int(run.batch),
        "gradient_accumulation_steps": int(run.micro_batches),
        "bf16": mixed_precision(run) == "bf16",
        "fp16": mixed_precision(run) == "fp16",
        "optim": trainer_optimizer(run),
        "max_grad_norm": CLIPPING if clipping is None else clipping,
        "gradient_checkpointing": run.recompute == FULL,
    }
    reentrant = run.recompute == FULL and run.reentrant
    arguments |= filled(
        optim_args=MOMENTUM if run.optimizer == "sgd_momentum" else "",
        gradient_checkpointing_kwargs={"use_reentrant": True} if reentrant else {},
        label_smoothing_factor=run.label_smoothing,
        dataloader_num_workers=run.data_workers,
    )
    if run.evaluation is not None:  # which also needs an evaluation dataset
        size = int(run.evaluation.batch)
        arguments |= {"eval_strategy": "epoch", "per_device_eval_batch_size": size}
    if run.options.get("sync_each_batch") and run.micro_batches > 1:
        each = {"sync_each_batch": True}
        arguments["accelerator_config"] = {"gradient_accumulation_kwargs": each}
    if run.compile:
        arguments["torch_compile"] = True
        if run.compile != "default":
            arguments["torch_compile_mode"] = run.compile
    return arguments | _liger(run)


def _liger(run: Run) -> dict[str, Any]:
    """Liger's kernels, by name where they are not those of the family."""
    usual = LIGER[run.arch.family].default if run.arch.family in LIGER else ()
    if not run.liger:
        return {}
    changed = {name: name in run.liger for name in sorted({*usual} ^ {*run.liger})}
    return {"use_liger_kernel": True} | ({"liger_kernel_config": changed} if changed else {})


def trainer_optimizer(run: Run) -> str:
    """The value of `optim` that makes the optimizer of a run; the nearest where none does."""
    wanted = "sgd" if run.optimizer == "sgd_momentum" else run.optimizer
    names = [name for name, keys in OPTIM.items() if keys["optimizer"] == wanted]
    if not names:
        return "adamw_torch_fused"
    usual = "fused" if "zero_stage" in run.options else "foreach"  # DeepSpeed's own Adam is fused
    for name in names:
        made = OPTIM[name].get("optimizer_implementation", "foreach")
        if made == (run.implementation or usual):
            return name
    return names[0]


def _load(run: Run) -> dict[str, Any]:
    """Arguments of from_pretrained: weights in fp32 under mixed precision."""
    width, _, kind = run.precision.partition("_")
    dtype = DTYPES[width if kind == "pure" else "fp32"]
    if given := run.options.get("init_dtype") or run.load_dtype:
        dtype = DTYPES[given]
    load: dict[str, Any] = {"dtype": dtype, "attn_implementation": run.attention}
    if run.options.get("init_device") == "cuda" and not run.quantization:
        load["device_map"] = "cuda"
    return load


def peft_arguments(file: RunFile, run: Run) -> dict[str, Any]:
    """PEFT's LoraConfig."""
    lora = file.training.lora
    assert lora is not None
    given = dict((file.program.peft if file.program else None) or {})
    arguments: dict[str, Any] = {
        "r": lora.r,
        "lora_alpha": given.get("lora_alpha", 2 * lora.r),
        "lora_dropout": lora.dropout,
        "task_type": "CAUSAL_LM",
    }
    if lora.target_modules is not None:
        arguments["target_modules"] = lora.target_modules
    return arguments | filled(use_dora=lora.dora)


def quantization_arguments(run: Run) -> dict[str, Any]:
    """transformers' BitsAndBytesConfig."""
    if run.quantization == "int8":
        return {"load_in_8bit": True, "llm_int8_threshold": run.int8_threshold}
    width = run.precision.partition("_")[0]
    half = DTYPES["bf16" if width == "fp32" else width]
    return {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": bool(run.double_quant),
        "bnb_4bit_compute_dtype": DTYPES["fp32"] if run.nf4_compute_bits == 32 else half,
    }
