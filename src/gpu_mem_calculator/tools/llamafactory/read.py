"""Reads LLaMA-Factory's commands and YAML files (commit ff6d4d1).

`llamafactory-cli train FILE key=value ...` and `src/train.py FILE` merge the pairs into the file;
options in their place are those of HfArgumentParser (hparams/parser.py read_args). Files of `chat`
and `api` are a model that answers. USE_MCA=1 is Megatron-Core by mcore_adapter; Megatron Bridge is
the other way to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ...catalog.kept import read_table
from ...ledger import frameworks
from ...runfile.text.errors import InputError, quoted
from ...runfile.text.yaml_text import parse_yaml
from ..reading.command import Command
from ..reading.keys import by_new_names, sort_keys, with_older_names
from ..reading.megatron_axes import engine, fewest_gpus, fused_loss, parallelism
from ..reading.named_files import NamedFiles
from ..reading.option_values import DTYPES, translated
from ..reading.reading import Could, Reading, Section
from ..reading.trainer_arguments import (
    TRAINER_TABLE,
    chosen_values,
    file_arguments,
    parsed_arguments,
    type_problems,
)
from ..releases.tool_at import below, by_names_at, tool_at
from ..translation.arguments import Values, argument_table, assumed_defaults, renamed, tables
from .launch import FactoryProcesses, command_launch
from .second_version import is_second_version, read_second_version
from .training import BITSANDBYTES, FOLDER, OWN_TABLE, STAGES, TABLE, training_lora, training_run

MEGATRON = argument_table("megatron", FOLDER)
TABLES = tables(__file__)
SERVERS: Mapping[str, str] = TABLES["servers"]
# Arguments of each back end, by the keys of `inference`.
SERVING: Mapping[str, Mapping[str, str]] = TABLES["serving"]
OTHER_NAMES = {**renamed(TRAINER_TABLE), **renamed("arguments", FOLDER)}
WITH_MEGATRON = {**TABLE, **MEGATRON}
# Arguments of the Trainer that its own loop reads, and those that Megatron has others for.
OPTIONS: list[str] = TABLES["options"]
LIMITS: Mapping[str, tuple[str, Could]] = TABLES["limits"]
# Own arguments with defaults that a training run depends on.
OWN = ("cutoff_len", "stage", "finetuning_type", "flash_attn", "use_reentrant_gc")
TOOL = "LLaMA-Factory"
OLDEST = "0.9.0"  # the first release whose code was read
FILES = (".yaml", ".yml", ".json")
ORPO = "orpo"
EXAMPLES = "examples/"  # a folder of the repository; examples.json has its files for training
STARTS = (["train"], ["sft"], ["dpo"], ["rm"])  # the last three are those of the second version


def read_command(command: Command) -> Reading:
    """A training command: a file followed by key=value pairs, or options."""
    words = list(command.words[1:])
    if words[:1] in STARTS:
        words = words[1:]
    given, problems, notes = _given(words, command.files)
    reading = _read(given, command.files, command_launch(command, given))
    reading.problems += problems
    reading.assumed[:0] = notes
    return reading


def read_data(data: Values, files: NamedFiles) -> Reading:
    """A file for training, chat or export, started without a launcher."""
    return _read(data, files, FactoryProcesses())


def _read(given: Values, files: NamedFiles, launch: FactoryProcesses) -> Reading:
    at = tool_at("llamafactory/arguments", files.releases)
    reading = Reading(tool=TOOL, version=at.version(frameworks.LLAMA_FACTORY.version))
    at.begin(reading, OLDEST)
    if is_second_version(given):
        found = read_second_version(reading, given, files, launch)
        found.run |= at.beside(*below(found.run))
        return found
    # by the environment, or by a key that nothing else has
    megatron = launch.megatron or any(key in MEGATRON and key not in OWN_TABLE for key in given)
    table = at.table(WITH_MEGATRON if megatron else TABLE)
    reading.problems += at.absent(given)
    if given.get("stage") == ORPO:  # until 0.7.1 a stage of its own
        given = {**given, "stage": "dpo", "pref_loss": ORPO}
    given = by_new_names(reading, OTHER_NAMES, given)
    if isinstance(given.get("flash_attn"), bool):  # as it was before 0.7
        given = {**given, "flash_attn": "fa2" if given["flash_attn"] else "disabled"}
    kept = sort_keys(reading, table, given)
    reading.problems += type_problems(table, kept)
    if reading.problems:
        return reading
    values = chosen_values(table, kept)
    if values["quantization_method"] == "bitsandbytes":  # as it was called until 0.9.3
        values["quantization_method"] = BITSANDBYTES
    if values["stage"] not in (*STAGES, "ppo"):
        known = ", ".join((*STAGES, "ppo"))
        reading.problems.append(f"stage={quoted(values['stage'])} must be one of {known}")
        return reading
    revision = {"revision": values["model_revision"]} if "model_revision" in kept else {}
    if values["model_name_or_path"] is not None:
        reading.run["model"] = {"name": values["model_name_or_path"], **revision}
    if "stage" not in kept and not values["do_train"]:
        serving_run(reading, kept, values)
        reading.run |= at.beside(values["infer_backend"])
        return reading
    if megatron:
        megatron_run(reading, values, launch)
    else:
        training_run(reading, kept, values, files, launch, at)
    by_names_at(reading, at)
    reading.run |= at.beside(*below(reading.run))
    own = {name: table[name] for name in OWN}
    assumed = assumed_defaults(f"{TOOL} {reading.version}", own, given)
    reading.assumed += [assumed] if assumed else []
    return reading


def _given(words: Sequence[str], files: NamedFiles) -> tuple[dict[str, Any], list[str], list[str]]:
    """The keys that a command gives, its problems, and what is assumed."""
    if not words or not words[0].endswith(FILES):
        return *parsed_arguments(TOOL, words, with_older_names(TABLE, OTHER_NAMES)), []
    notes: list[str] = []
    given = _example(words[0], files, notes)
    if given is None:
        given = file_arguments(TOOL, words[0], files, "llamafactory-cli train", notes)
    for word in words[1:]:
        name, sign, value = word.partition("=")
        if not sign:
            raise InputError(f"{quoted(word)} after {words[0]} must be a pair key=value")
        given[name] = parse_yaml(value) if value.strip() else None
    return given, [], notes


def _example(path: str, files: NamedFiles, notes: list[str]) -> dict[str, Any] | None:
    """The keys of a file of LLaMA-Factory's repository that is not here; None for another file."""
    name = path.replace("\\", "/").rpartition(EXAMPLES)[2]
    known = read_table(f"{FOLDER}/examples.json")
    if EXAMPLES not in path.replace("\\", "/") or name not in known or files.exists(path):
        return None
    release, given = known[name]
    notes.append(f"{path} is not here; it is taken as LLaMA-Factory {release} has it")
    return dict(given)


def megatron_run(reading: Reading, values: Values, launch: FactoryProcesses) -> None:
    """Add the sections of a run on Megatron-Core."""
    training: Section = {
        "batch_size": values["per_device_train_batch_size"],
        "seq_len": values["cutoff_len"],
        "gradient_accumulation_steps": values["gradient_accumulation_steps"],
        "precision": "fp16_mixed" if values["fp16"] else "bf16_mixed",
        "gradient_clipping": values["max_grad_norm"] or 0,
    }
    if values["finetuning_type"] == "lora":
        training["lora"] = training_lora(values)
    training |= fused_loss(values) | _recompute(reading, values)
    run = reading.run
    run["training"] = training
    run |= {"parallelism": parallelism(values), "engine": engine(values, OPTIONS)}
    fewest = partial(fewest_gpus, reading, values, values["tensor_model_parallel_size"])
    run["hardware"] = {"num_gpus": launch.num_gpus or fewest()}
    reading.limit(launch.megatron or "a Megatron back end", *LIMITS["megatron"])


def _recompute(reading: Reading, values: Values) -> Section:
    kind = values["recompute_granularity"]
    if not kind:
        return {}
    if values["recompute_method"] == "block" or (values["recompute_num_layers"] or 1) > 1:
        key = f"recompute_method={values['recompute_method']}"
        reading.limit(key, *LIMITS["recompute_method"])
    return {"activation_checkpointing": "full" if kind == "full" else "selective"}


def serving_run(reading: Reading, kept: Values, values: Values) -> None:
    """Add the inference section."""
    if values["export_dir"]:
        reading.run["program"] = {"tool": "llamafactory.export"}
        return
    back_end = values["infer_backend"]
    if back_end not in SERVERS:
        reading.problems.append(f"infer_backend={back_end!r} must be {', '.join(SERVERS)}")
        return
    inference: dict[str, Any] = {"engine": SERVERS[back_end]}
    if "new_tokens" in SERVING[back_end]:
        inference |= {"batch_size": 1, "prompt_len": 1024}
        reading.assumed.append("a prompt of 1024 tokens, and as many new ones as allowed")
    inference |= {key: values[name] for key, name in SERVING[back_end].items()}
    if inference.get("tensor_parallel_size") == -1:
        del inference["tensor_parallel_size"]
    if values["infer_dtype"] != "auto":
        inference["dtype"] = translated("infer_dtype", values["infer_dtype"], DTYPES)
    if values["adapter_name_or_path"]:
        reading.limit(f"adapter_name_or_path={values['adapter_name_or_path']}", *LIMITS["adapter"])
    reading.run["inference"] = inference
