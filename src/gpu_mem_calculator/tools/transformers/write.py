"""Writes a run as TrainingArguments of transformers 5.17.0: YAML, JSON or a command line.

What a training script itself must do, as the Python lines of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import Any

from ...runfile.config import RunFile
from ...runfile.resolve.resolved_run import ResolvedRun
from ..translation.arguments import Values
from ..translation.tools import TRAINER
from ..writing.texts import command_text, json_text, option_words, yaml_text
from ..writing.unsaid import unsaid_sentences
from ..writing.written import Written, launch_words
from .program import launch_arguments, program_run, program_sections

WIDTH = 84
DTYPES = ("dtype", "bnb_4bit_compute_dtype")  # arguments that are torch's dtypes
TITLE = "transformers"
OUTPUT = {"output_dir": "output"}


def script_lines(program: Values, resolved: ResolvedRun) -> Iterator[str]:
    """The lines that load the model and its adapters, as comments of the file."""
    yield "TrainingArguments have no keys for the model. In train.py:"
    load = _arguments(program["load"])
    if program.get("quantization"):
        bits = f"BitsAndBytesConfig({_arguments(program['quantization'])})"
        load += f", quantization_config={bits}"
    name = resolved.model.address
    yield from _code(f"model = AutoModelForCausalLM.from_pretrained({name!r}, {load})")
    if program.get("quantization"):
        yield from _code("model = prepare_model_for_kbit_training(model)")
    if program.get("peft"):
        lora = f"LoraConfig({_arguments(program['peft'])})"
        yield from _code(f"model = get_peft_model(model, {lora})")
    yield f"Its batches have sequences of {program['data']['seq_len']:,} tokens."


def _code(line: str) -> list[str]:
    return wrap(line, WIDTH, initial_indent="    ", subsequent_indent=" " * 8)


def _arguments(values: Values) -> str:
    return ", ".join(
        f"{key}=torch.{value}" if key in DTYPES else f"{key}={value!r}"
        for key, value in values.items()
    )


def write(file: RunFile, resolved: ResolvedRun) -> Written:
    """TrainingArguments as YAML, for HfArgumentParser.parse_yaml_file."""
    return _written(file, resolved, yaml_text)


def write_json(file: RunFile, resolved: ResolvedRun) -> Written:
    """TrainingArguments as JSON, for HfArgumentParser.parse_json_file."""
    return _written(file, resolved, json_text)


def write_command(file: RunFile, resolved: ResolvedRun) -> Written:
    """The command line of a script that has these arguments."""

    def command(data: dict[str, Any]) -> str:
        if "fsdp" in data:  # a text on a command line (_apply_legacy_fsdp_to_config)
            data = {**data, "fsdp": resolved.run.options["sharding_strategy"]}
        return command_text([*launch_words(resolved).split(), "train.py", *option_words(data)])

    return _written(file, resolved, command, start="bash {file}")


def _written(file: RunFile, resolved: ResolvedRun, text: Any, start: str = "") -> Written:
    program = program_sections(TITLE, TRAINER, file, resolved)
    data = {**OUTPUT, **program["args"], **launch_arguments(program)}
    beside = {}
    if program.get("accelerate"):
        beside["accelerate.yaml"] = yaml_text(program["accelerate"])
        start = start or "accelerate launch --config_file accelerate.yaml train.py {file}"
    return Written(
        text=text(data),
        start=start,
        notes=tuple(script_lines(program, resolved)),
        unsaid=unsaid_sentences(TITLE, file, resolved, program_run(file, program)),
        beside=beside,
    )
