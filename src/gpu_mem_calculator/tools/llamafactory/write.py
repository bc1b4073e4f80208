"""Writes a run as the YAML of `llamafactory-cli train` (LLaMA-Factory ff6d4d1), stage sft."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ...run.recompute import FULL
from ...run.run import Run
from ...runfile.config import RunFile
from ...runfile.resolve.resolved_run import ResolvedRun
from ...runfile.text.errors import InputError
from ..transformers.program import beyond_sft, launch_arguments, program_sections
from ..translation.arguments import filled
from ..translation.tools import TRAINER
from ..writing.texts import json_text, yaml_text
from ..writing.written import Written
from .training import ATTENTION, MULTIPLE

TITLE = "LLaMA-Factory"
DATASET, TEMPLATE = "identity,alpaca_en_demo", "default"  # those of its own examples
FLASH = {name: word for word, name in ATTENTION.items()}
# Arguments of the Trainer in whose place LLaMA-Factory has its own.
OWN = ("gradient_checkpointing", "gradient_checkpointing_kwargs", "use_liger_kernel")
NOTE = f"{DATASET} are the datasets of LLaMA-Factory's own examples; set yours, and its template"


def write(file: RunFile, resolved: ResolvedRun) -> Written:
    """The text of the YAML for `llamafactory-cli train`."""
    return _written(file, resolved, yaml_text)


def write_json(file: RunFile, resolved: ResolvedRun) -> Written:
    """The same as JSON, which is YAML, too."""
    return _written(file, resolved, json_text)


def _written(file: RunFile, resolved: ResolvedRun, text: Callable[[Any], str]) -> Written:
    run = resolved.run
    beyond = beyond_sft(run)
    if beyond:
        raise InputError(f"the run has {beyond}; only stage sft is written for {TITLE}")
    program = program_sections(TITLE, TRAINER, file, resolved)
    data = {
        "model_name_or_path": resolved.model.address,
        "stage": "sft",
        "do_train": True,
        **_method(program, run),
        "flash_attn": FLASH[program["load"]["attn_implementation"]],
        **_switches(program, run),
        "dataset": DATASET,
        "template": TEMPLATE,
        "cutoff_len": int(run.seq),
        "output_dir": "output",
        **{name: value for name, value in program["args"].items() if name not in OWN},
        **launch_arguments(program),
    }
    return Written(text=text(data), notes=(NOTE, *_padding(int(run.seq))))


def _padding(seq: int) -> Iterator[str]:
    """A note where the collator pads a row of the run's length."""
    if seq % MULTIPLE:
        padded = -(-seq // MULTIPLE) * MULTIPLE
        yield f"its collator pads rows to a multiple of {MULTIPLE}: {seq:,} tokens to {padded:,}"


def _method(program: dict[str, Any], run: Run) -> dict[str, Any]:
    """Full training or adapters, and the format of a frozen base."""
    peft = program.get("peft")
    if peft is None:
        # weights that are trained stay in bf16
        return {"finetuning_type": "full"} | filled(pure_bf16=run.precision == "bf16_pure")
    targets = peft.get("target_modules", "all-linear")
    keys = {
        "finetuning_type": "lora",
        "lora_rank": peft["r"],
        "lora_alpha": peft["lora_alpha"],
        "lora_dropout": peft["lora_dropout"],
        "lora_target": "all" if targets == "all-linear" else ",".join(targets),
    }
    keys |= filled(use_dora=peft.get("use_dora"))
    base = program.get("quantization") or {}
    if base.get("load_in_8bit"):
        keys["quantization_bit"] = 8
    elif base.get("load_in_4bit"):
        keys |= {
            "quantization_bit": 4,
            "quantization_type": base["bnb_4bit_quant_type"],
            "double_quantization": base["bnb_4bit_use_double_quant"],
        }
    return keys


def _switches(program: dict[str, Any], run: Run) -> dict[str, Any]:
    """Recompute, which is on by default, and Liger's kernels."""
    keys: dict[str, Any] = {"disable_gradient_checkpointing": run.recompute != FULL}
    if run.recompute == FULL:
        keys["use_reentrant_gc"] = bool(run.reentrant)
    keys |= filled(enable_liger_kernel=program["args"].get("use_liger_kernel"))
    if run.options.get("init_device") == "cpu":
        keys["low_cpu_mem_usage"] = False
    return keys
