"""The measured programs as commands: the same keys of a run file, so the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.runfile.read import as_dict
from gpu_mem_calculator.tools.launchers.launch import read_launch
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.tools.reading.named_files import NamedFiles
from gpu_mem_calculator.tools.reading.tools import read_command

MEASURED = Path(__file__).parents[2] / "ground_truth" / "programs.jsonl"
ROWS = [
    row
    for row in map(json.loads, MEASURED.read_text(encoding="utf-8").splitlines())
    if row["config"]["program"]["tool"] != "lightning"
]
LORA = {"r": "lora_r", "lora_alpha": "lora_alpha", "target_modules": "lora_target_modules"}
QUANTIZATION = {
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
    "bnb_4bit_quant_type": "bnb_4bit_quant_type",
    "bnb_4bit_use_double_quant": "use_bnb_nested_quant",
}
# A script that loads the model itself, as those of the measured runs did.
SCRIPT = """
from transformers import AutoModelForCausalLM, HfArgumentParser
from {package} import {trainer}, {config}
args, model_args = HfArgumentParser(({config}, ModelConfig)).parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path, dtype=model_args.dtype)
trainer = {trainer}(model, args=args)
"""


def _words(program: dict[str, Any]) -> list[str]:
    """The command line of a program; every bool is written out."""
    options = {"model_name_or_path": "a/b", **program["args"], "dtype": program["load"]["dtype"]}
    data, peft = program["data"], program.get("peft")
    if program["tool"] == "transformers.Trainer":
        options["max_seq_length"] = data["seq_len"]
    elif "GRPO" in program["tool"]:
        options["max_prompt_length"] = data["prompt"]
    if peft is not None:
        options |= {"use_peft": True, "lora_dropout": peft.get("lora_dropout", 0.0)}
        options |= {name: peft[key] for key, name in LORA.items()}
    quantization = program.get("quantization") or {}
    options |= {QUANTIZATION[k]: v for k, v in quantization.items() if k in QUANTIZATION}
    words = ["python", "train.py"]
    for name, value in options.items():
        values = value if isinstance(value, list) else [value]
        words += [f"--{name}", *(str(one) for one in values)]
    return words


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_a_command_means_the_measured_program(row: dict[str, Any], tmp_path: Path) -> None:
    """The command of a measured run gives the keys that its `program` section gives."""
    config = row["config"]
    program = config["program"]
    package, _, trainer = program["tool"].partition(".")
    name = "TrainingArguments" if trainer == "Trainer" else trainer.replace("Trainer", "Config")
    text = SCRIPT.format(package=package, trainer=trainer, config=name)
    (tmp_path / "train.py").write_text(text, encoding="utf-8")
    command = read_launch(_words(program), NamedFiles(tmp_path))
    reading = read_command(command)
    assert not reading.problems
    assert not reading.limits
    assert reading.run["program"]["tool"] == program["tool"]
    if "DPO" in trainer:  # how long prompts are, a command does not say
        reading.run["program"]["data"] = program["data"]
    run = {**reading.run, "model": config["model"], "hardware": config["hardware"]}
    found, meant = read(run).file, read(config).file
    for section in ("training", "parallelism", "engine"):
        assert as_dict(getattr(found, section)) == as_dict(getattr(meant, section))
