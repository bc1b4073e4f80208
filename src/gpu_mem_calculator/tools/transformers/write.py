"""Writes a run as TrainingArguments of transformers 5.17.0: YAML, JSON or a command line."""

from __future__ import annotations

from typing import Any

from ...runfile.config import RunFile
from ...runfile.resolve.resolved_run import ResolvedRun
from ..writing.launch import launch_words
from ..writing.texts import command_text, json_text, option_words, yaml_text
from ..writing.unsaid import unsaid_sentences
from ..writing.written import Written
from .program import TRAINER, launch_arguments, program_run, program_sections
from .script_lines import script_lines

TITLE = "transformers"
OUTPUT = {"output_dir": "output"}


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
