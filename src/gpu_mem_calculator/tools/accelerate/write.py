"""Writes the launch of a run as Accelerate's configuration: DDP, FSDP 1 and 2, DeepSpeed."""

from __future__ import annotations

from ...runfile.config import RunFile
from ...runfile.resolve.resolved_run import ResolvedRun
from ...runfile.text.errors import InputError
from ..transformers.launch import accelerate_data, launch_problem, trainer_deepspeed
from ..transformers.program import program_run, program_sections
from ..translation.tools import TRAINER
from ..writing.texts import json_text, yaml_text
from ..writing.unsaid import unsaid_sentences
from ..writing.written import Written

TITLE = "Accelerate"
LAUNCH = ("deepspeed", "fsdp_config", "accelerate")  # keys of a `program` section
OWN = ("engine.", "training.autocast")  # keys that the launch decides, and not the script
PROGRAM = (
    "The script has the rest: model, sequence length, batch size, optimizer, recompute.\n"
    "gpu-mem-calc convert --to transformers writes those for a Trainer script."
)


def write(file: RunFile, resolved: ResolvedRun) -> Written:
    """The text of Accelerate's YAML; where it names DeepSpeed's JSON, that is a file beside it."""
    problem = launch_problem(TITLE, resolved)
    if problem:
        raise InputError(problem)
    data = accelerate_data(file, resolved)
    named = (data.get("deepspeed_config") or {}).get("deepspeed_config_file")
    beside = {named: json_text(trainer_deepspeed(file, resolved))} if named else {}
    program = program_sections(TITLE, TRAINER, file, resolved)
    if not named:  # DeepSpeed's JSON stays in the program, as if its file were read
        program = {key: one for key, one in program.items() if key not in LAUNCH}
        program["accelerate"] = data
    unsaid = unsaid_sentences(TITLE, file, resolved, program_run(file, program))
    return Written(
        text=yaml_text(data),
        notes=(PROGRAM,),
        unsaid=tuple(one for one in unsaid if one.startswith(OWN)),
        beside=beside,
    )
