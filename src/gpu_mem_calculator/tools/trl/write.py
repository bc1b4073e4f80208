"""Writes a run as the YAML of `trl sft` (TRL 1.16.0): SFTConfig, ModelConfig, ScriptArguments.

Keys that these do not have, such as num_processes, `trl` passes on to `accelerate launch`
(cli/commands/training.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...runfile.config import RunFile
from ...runfile.resolve.resolved_run import ResolvedRun
from ...runfile.text.errors import InputError
from ..transformers.program import beyond_sft, launch_arguments, program_run, program_sections
from ..translation.arguments import tables
from ..writing.texts import json_text, yaml_text
from ..writing.unsaid import unsaid_sentences
from ..writing.written import Written

TABLES = tables(__file__)
TITLE, TOOL = "TRL", "trl.SFTTrainer"
DATASET = "trl-lib/Capybara"  # the example of TRL's documentation
LOADED = ("dtype", "attn_implementation")  # what trl sft passes on to from_pretrained
# PEFT's names, and those of TRL's ModelConfig.
PEFT: dict[str, str] = TABLES["peft"]
# bitsandbytes' names, and those of ModelConfig; its compute dtype is that of the weights.
QUANTIZATION: dict[str, str] = TABLES["quantization"]


def write(file: RunFile, resolved: ResolvedRun) -> Written:
    """The text of the YAML for `trl sft --config`."""
    return _written(file, resolved, yaml_text)


def write_json(file: RunFile, resolved: ResolvedRun) -> Written:
    """The same as JSON, which is YAML, too."""
    return _written(file, resolved, json_text)


def _written(file: RunFile, resolved: ResolvedRun, text: Callable[[Any], str]) -> Written:
    beyond = beyond_sft(resolved.run)
    if beyond:
        what = f"the run has {beyond}, and `trl sft` does not"
        raise InputError(f"{what}; only SFT is written for TRL")
    program = sft_program(file, resolved)
    data = {
        "model_name_or_path": resolved.model.address,
        **_model(program),
        "dataset_name": DATASET,
        "output_dir": "output",
        **{key: one for key, one in program["args"].items() if key != "model_init_kwargs"},
        **launch_arguments(program),
    }
    beside, launch = {}, _launch(resolved)
    if program.get("accelerate"):
        beside["accelerate.yaml"] = yaml_text(program["accelerate"])
        launch = {"accelerate_config": "accelerate.yaml"}
    return Written(
        text=text(data | launch),
        notes=(f"{DATASET} is the dataset of TRL's own example; set yours",),
        unsaid=unsaid_sentences(TITLE, file, resolved, program_run(file, program)),
        beside=beside,
    )


def sft_program(file: RunFile, resolved: ResolvedRun) -> dict[str, Any]:
    """The `program` section of a run as `trl sft` reads its file."""
    program = program_sections(TITLE, TOOL, file, resolved)
    program["args"] |= {"max_length": int(resolved.run.seq), "packing": False}
    del program["data"]
    load = program.pop("load")
    program["args"]["model_init_kwargs"] = {key: load[key] for key in LOADED}
    if program.get("peft"):
        program["peft"] = {key: one for key, one in program["peft"].items() if key in PEFT}
    if program.get("quantization"):
        program["quantization"] |= {"bnb_4bit_compute_dtype": load["dtype"]}
    return program


def _model(program: dict[str, Any]) -> dict[str, Any]:
    """Keys of ModelConfig."""
    data: dict[str, Any] = dict(program["args"]["model_init_kwargs"])
    if program.get("peft"):
        data["use_peft"] = True
        data |= {PEFT[key]: value for key, value in program["peft"].items()}
        if isinstance(data.get("lora_target_modules"), str):
            data["lora_target_modules"] = [data["lora_target_modules"]]
    given = program.get("quantization") or {}
    return data | {QUANTIZATION[key]: one for key, one in given.items() if key in QUANTIZATION}


def _launch(resolved: ResolvedRun) -> dict[str, Any]:
    hardware = resolved.hardware
    if hardware.num_nodes == 1:
        return {"num_processes": hardware.num_gpus}
    return {"num_processes": hardware.num_gpus, "num_machines": hardware.num_nodes}
