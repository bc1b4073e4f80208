"""Reads ms-swift's commands: `swift sft|pt|rlhf` and `megatron sft|pt|rlhf` (commit 3602360).

A YAML file in the place of the first option has the same arguments (cli/main.py parse_yaml_args).
`megatron` is Megatron-Core under the names of its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ...catalog.kept import read_table
from ...ledger import frameworks
from ...runfile.text.errors import InputError, nearest
from ..reading.command import Command
from ..reading.keys import by_new_names, sort_keys, with_older_names
from ..reading.megatron_axes import engine, fewest_gpus, fused_loss, parallelism
from ..reading.named_files import NamedFiles
from ..reading.options import option_syntax
from ..reading.reading import Reading, Section
from ..reading.trainer_arguments import (
    OLDER,
    TRAINER,
    TRAINER_TABLE,
    chosen_values,
    file_arguments,
    parsed_arguments,
    type_problems,
)
from ..releases.tool_at import ToolAt, below, by_names_at, tool_at
from ..translation.arguments import ArgumentTable, Values, argument_table, filled, renamed, tables
from .processes import SwiftProcesses, add_hardware, command_processes
from .training import training_lora, training_run

# Options of the engine that have the same names, where they are not None.
OPTIONS, EXPERTS = (tuple(tables(__file__)[name]) for name in ("options", "experts"))
USUAL_OPTIMIZERS = {"adam": "adamw", "sgd": "sgd_momentum"}
TOOL, FOLDER = "ms-swift", Path(__file__).parent
OLDEST = "3.2.2"  # the first release whose code was read
FILES = (".yaml", ".yml", ".json")
METHODS = ("sft", "pt", "rlhf")
SWIFT: ArgumentTable = {**OLDER, **TRAINER, **argument_table("arguments", FOLDER)}
MEGATRON: ArgumentTable = argument_table("megatron", FOLDER)
# Names of other releases, of swift and of megatron.
OTHER_NAMES = {
    False: {**renamed(TRAINER_TABLE), **renamed("arguments", FOLDER)},
    True: renamed("megatron", FOLDER),
}
RLHF = "rlhf"
ENVIRONMENT = "ENV"  # a file's variables, which those that are set win over
LOSSES = ("loss_type",)  # of rlhf: they are made of one number for each token


def read_command(command: Command) -> Reading:
    """A training command of swift or megatron."""
    megatron, words = _method(command)
    table = with_older_names(MEGATRON if megatron else SWIFT, OTHER_NAMES[megatron])
    notes: list[str] = []
    path = "megatron" if megatron else ""
    given, problems = _given(words[1:], command.files, table, path, notes)
    variables = _variables(given) | dict(command.environment)
    processes = command_processes(replace(command, environment=variables))
    reading = _read(words[0], given, command.files, processes, megatron=megatron)
    reading.problems += problems
    reading.assumed += notes
    return reading


def read_data(data: Values, files: NamedFiles) -> Reading:
    """A YAML file, by its keys one of swift or of megatron."""
    megatron = any(key in MEGATRON and key not in SWIFT for key in data)
    method = RLHF if "rlhf_type" in data else "sft"
    return _read(method, data, files, SwiftProcesses(), megatron=megatron)


def _method(command: Command) -> tuple[bool, list[str]]:
    """Whether a command is megatron's, and its words from the method on."""
    words = list(command.words)
    script = command.words[0].replace("\\", "/")
    if command.program.endswith(".py"):  # swift/cli/sft.py behind torchrun
        words = ["", command.program.removesuffix(".py"), *words[1:]]
    megatron = command.program == "megatron" or "_megatron/" in script
    method = words[1] if len(words) > 1 else ""
    if method not in METHODS:
        name = f"{command.program} {method}".rstrip()
        raise InputError(f"{name} does not train; swift and megatron are read with sft, pt or rlhf")
    return megatron, words[1:]


def _read(
    method: str, given: Values, files: NamedFiles, processes: SwiftProcesses, *, megatron: bool
) -> Reading:
    at = tool_at("swift/megatron" if megatron else "swift/arguments", files.releases)
    reading = Reading(tool=TOOL, version=at.version(frameworks.MS_SWIFT.version))
    at.begin(reading, OLDEST)
    table = at.table(MEGATRON if megatron else SWIFT)
    given = {name: value for name, value in given.items() if name != ENVIRONMENT}
    reading.problems += at.absent(given, prefix="--")
    given = by_new_names(reading, OTHER_NAMES[megatron], given)
    given |= _converted_model(reading, given)
    losses = {name: given[name] for name in LOSSES if name in given and method == RLHF}
    reading.keys |= dict.fromkeys(losses, "free")
    given = _with_model(reading, given, at)
    kept = sort_keys(reading, table, {k: v for k, v in given.items() if k not in losses})
    reading.problems += type_problems(table, kept)
    if given.get("config"):
        reading.problems.append("--config: groups of workers under Ray are not read")
    if reading.problems:
        return reading
    values = chosen_values(table, kept)
    values["method"] = method
    revision = {"revision": values["model_revision"]} if values["model_revision"] else {}
    if values["model"]:
        reading.run["model"] = {"name": values["model"], **revision}
    if megatron:
        megatron_run(reading, values, processes)
    else:
        training_run(reading, kept, values, files, processes, at)
    by_names_at(reading, at)
    reading.run |= at.beside(*below(reading.run))
    return reading


def _converted_model(reading: Reading, given: Values) -> Section:
    """The model by the folder of its converted weights: `Qwen2.5-7B-mcore`, as `swift export
    --to_mcore true` writes it, whose args.json has the model and is not opened.
    """
    folder = str(given.get("mcore_model") or "").rstrip("/").rpartition("/")[2]
    name = folder.removesuffix("-mcore")
    if given.get("model") or name == folder:
        return {}
    reading.assumed.append(f"mcore_model={folder} is {name}, as the folder is called")
    return {"model": name}


def _with_model(reading: Reading, given: Section, at: ToolAt) -> Section:
    """The arguments with the model that --model_type names: until 2.6.1 that was enough, and
    --max_length -1 was the model's own (swift/llm/utils/model.py register_model,
    swift/llm/utils/argument.py, at the tags 1.1.0 to 2.6.1).
    """
    kind = given.get("model_type")
    newer = at.is_other and not at.before("3.0")
    if isinstance(given.get("model"), str) or not isinstance(kind, str) or newer:
        return given
    known: Mapping[str, str] = read_table(f"{FOLDER}/model_types.json")
    if kind not in known:
        hint = nearest(kind, known) or ""
        reading.problems.append(f"--model_type {kind} is no model of ms-swift before 3.0{hint}")
        return given
    reading.assumed.append(f"--model_type {kind} is {known[kind]}, as ms-swift before 3.0 has it")
    longest = {"max_length": None} if given.get("max_length") == -1 else {}
    return {**given, "model": known[kind], **longest}


def _variables(given: Values) -> dict[str, str]:
    found = given.get(ENVIRONMENT)
    if not isinstance(found, Mapping):
        return {}
    return {str(name): str(value) for name, value in found.items()}


def _given(
    words: Sequence[str], files: NamedFiles, table: ArgumentTable, path: str, notes: list[str]
) -> tuple[dict[str, Any], list[str]]:
    """The arguments that a command gives: those of its file, then its options."""
    given: dict[str, Any] = {}
    if words and words[0].endswith(FILES):
        given, words = file_arguments(TOOL, words[0], files, "swift", notes), words[1:]
    lists = option_syntax(path or "arguments", FOLDER).lists
    values, problems = parsed_arguments(TOOL, words, table, lists)
    return given | values, problems


def megatron_run(reading: Reading, values: Values, processes: SwiftProcesses) -> None:
    """Add the sections of a run on Megatron-Core."""
    add_hardware(reading, processes)
    run = reading.run
    if values["method"] == "rlhf":
        run["program"] = {"tool": "swift.megatron_rlhf"}
        return
    hardware = run.setdefault("hardware", {})
    gpus = hardware.get("num_gpus")
    if not gpus:
        gpus = fewest_gpus(reading, values, values["expert_tensor_parallel_size"])
    hardware["num_gpus"] = gpus
    training: Section = {
        "batch_size": values["micro_batch_size"],
        "gradient_accumulation_steps": _micro_batches(values, gpus),
        "precision": "fp16_mixed" if values["fp16"] else "bf16_mixed",
        "gradient_clipping": values["clip_grad"] or 0,
        "optimizer": USUAL_OPTIMIZERS.get(values["optimizer"], "adamw"),
    }
    length = values["packing_length"] or values["max_length"]
    if isinstance(length, int) and length > 0:
        training["seq_len"] = length
        reading.assumed.append(f"every sequence has {length} tokens")
    else:
        reading.assumed.append("every sequence is as long as the model allows: give --max_length")
    training |= filled(lora=training_lora(values) if values["tuner_type"] != "full" else {})
    training |= (
        fused_loss(values) | _recompute(values) | filled(pytorch_alloc_conf=processes.allocator)
    )
    run["training"] = training
    run["parallelism"] = parallelism(values)
    if values["tensor_model_parallel_size"] == 1:
        run["parallelism"].pop("sequence_parallel", None)  # ms-swift switches it off
    run["engine"] = _engine(values)
    _name_limits(reading, values)


def _engine(values: Values) -> Section:
    names = (*OPTIONS, *(EXPERTS if values["expert_model_parallel_size"] > 1 else ()))
    found = engine(values, names)
    if str(found.get("attention_backend")).startswith("flash_"):
        found["attention_backend"] = "flash"  # with a version of flash-attn
    group = values["microbatch_group_size_per_vp_stage"]
    if group is not None:
        found["microbatch_group_size_per_virtual_pipeline_stage"] = group
    return found


def _recompute(values: Values) -> Section:
    """Attention alone is computed again by default (recompute_granularity selective)."""
    kind = values["recompute_granularity"]
    if kind in (None, "none"):
        return {}
    if kind == "full":
        count, method = values["recompute_num_layers"] or 1, values["recompute_method"]
        policy = {"recompute_method": method or "uniform", "recompute_num_layers": count}
        if count == 1 and method != "block":
            return {"activation_checkpointing": "full"}
        return {"recompute": {"recompute_granularity": "full", **policy}}
    modules = values["recompute_modules"]
    modules = [modules] if isinstance(modules, str) else modules
    return {"recompute": {"recompute_granularity": "selective", "recompute_modules": modules}}


def _name_limits(reading: Reading, values: Values) -> None:
    if values["optimizer"] not in USUAL_OPTIMIZERS:
        why = "this optimizer is not modelled under Megatron; the estimate has Adam's"
        reading.limit(f"optimizer={values['optimizer']}", why)


def _micro_batches(values: Values, gpus: int) -> int:
    """Micro-batches of a step: global_batch_size over all data-parallel ranks."""
    model = values["tensor_model_parallel_size"] * values["pipeline_model_parallel_size"]
    ranks: int = max(1, gpus // (model * values["context_parallel_size"]))
    return max(1, int(values["global_batch_size"]) // (int(values["micro_batch_size"]) * ranks))
