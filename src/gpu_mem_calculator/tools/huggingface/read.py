"""Reads commands of trl, of transformers' examples and of a user's script, and their files.

A file of arguments is for the trainer of which it has the most names. DeepSpeed-Chat's main.py is
a loop of its own around DeepSpeed (DeepSpeedExamples 45b4b71).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ...runfile.text.errors import InputError, nearest, quoted
from ..launchers.accelerate import file_settings, with_accelerate
from ..launchers.launcher_options import LauncherOptions, split_options, syntaxes
from ..reading.command import Command
from ..reading.keys import sort_keys
from ..reading.named_files import NamedFiles
from ..reading.options import option_syntax, parse_options
from ..reading.reading import Reading, Section
from ..trainer_launch.launch import add_launch, leave_out
from ..translation.arguments import Values, argument_data, argument_table, argument_values, tables
from ..translation.tools import TOOLS, TRAINER
from .own_options import (
    CONFIG,
    add_dropped_limit,
    add_own_limit,
    known_names,
    own_values,
    split_own,
)
from .sections import WHOLE, program_sections
from .serves import refuse_server
from .trainers import NO_ARGUMENTS, TRL, ScriptArguments, renamed, script_arguments, trainer_of_name

if TYPE_CHECKING:
    from ..script.record import ScriptRecord

SCRIPT, FLAG, TABLE, OWN = "main.py", "--deepspeed", "deepspeed_chat", Path(__file__).parent
TITLE = "DeepSpeed-Chat"
TABLES = tables(__file__)
# Arguments that only a later step has, and how that step is named.
LATER: dict[str, str] = TABLES["later"]
PRECISIONS = ("fp16", "bf16")
MOST_NAMED = 3
# Names of earlier releases that tell the trainer, as older.toml lists them.
TELLING = {"max_seq_length": "trl.SFTTrainer", "reward_funcs": "trl.GRPOTrainer"}
FILES = (".yaml", ".yml", ".json", ".toml")
EXAMPLES = ("run_clm.py", "run_fim.py")  # of transformers
SERVER = "vllm-serve"
NAMED: Mapping[str, str] = TABLES["named"]  # options that name a file, and what it has
OTHER_FILES = (*NAMED, "deepspeed_config")


def read_command(command: Command) -> Reading:
    """What a command of trl or of a training script means."""
    if command.module or command.program == "trl":
        return _read_trl(_subcommand(command))
    if is_deepspeed_chat(command):
        return read_deepspeed_chat(command)
    script = command.program
    if script not in EXAMPLES and (own := _read_own(command)) is not None:
        return own
    tool, why = trainer_of_name(script), ""
    if tool is None and script not in EXAMPLES:
        command.files.want(command.words[0])
        refuse_server(command)
        tool, why = _trainer_of_config(command)
    reading = _reading(tool or TRAINER)
    if why:
        reading.assumed.append(f"{script} uses {tool}, {why}")
    elif tool is None and script not in EXAMPLES:
        reading.assumed.append(f"{script} uses {TRAINER}, because its name says no other")
    reading.usual = script not in EXAMPLES
    values = _script_values(reading, command, tool or TRAINER)
    _fill(reading, tool or TRAINER, values, command)
    return reading


def _subcommand(command: Command) -> Command:
    """`python -m trl.scripts.sft` as `trl sft`, which starts the same script."""
    name = command.words[0].rpartition(".")[2] if "scripts." in command.words[0] else ""
    words = ("trl", *([name] if name else []), *command.words[1:])
    return replace(command, words=words, module=False)


def _read_trl(command: Command) -> Reading:
    """`trl sft ...`: options of the script, and of accelerate launch (cli/commands/training.py)."""
    name = command.words[1] if len(command.words) > 1 else ""
    if name.replace("_", "-") == SERVER:
        from .vllm_serve import read_server

        return read_server(command)
    if name not in TRL:
        known = [*TRL, SERVER]
        hint = nearest(name, known) or f"; it can be {', '.join(known)}"
        raise InputError(f"trl {name} is not read{hint}".replace("  ", " "))
    tool = TRL[name]
    reading, arguments = _reading(tool), script_arguments(tool)
    words, own = split_own(command.words[2:], arguments)
    config = own.pop("config", None)
    file = _file(command.files, config[0]) if config else {}
    launch = _taken_launch(file, arguments)
    values = _sorted(reading, arguments, file, "")
    values |= _options(f"trl {name}", words, arguments, reading, command.files)
    for key, value in own_values(own).items():
        if _is_launch(key):
            launch[key] = value
        else:
            known = [*arguments.table, *syntaxes()["accelerate"].names]
            hint = nearest(key, known) or "; leave it out"
            reading.problems.append(f"--{key} is not an option of trl {name}{hint}")
    started = _launched(command, launch, reading) if launch or not command.launcher else command
    _fill(reading, tool, values, started)
    return reading


def _read_own(command: Command) -> Reading | None:
    """What a script does, with the options of its command; None where its text cannot be read."""
    from .own_script import follow, parses_arguments, reads_config, script_means, tool_of

    found = follow(command, {})
    if found is None:
        return None
    if found.of_kind("server"):
        from ..vllm.engine_class import read_servers

        return read_servers(found, command)
    tool = tool_of(found, command)
    reading, arguments = _reading(tool), script_arguments(tool)
    reading.script = command.program
    parsed, values = parses_arguments(found), {}
    table = arguments if parsed else NO_ARGUMENTS
    words, own = split_own(command.words[1:], table)
    given = own_values(own)
    if reads_config(found) and "config" in given:
        file = _file(command.files, str(given.pop("config")))
        given = {**_taken_own(file, arguments, found), **given}
        values = _sorted(reading, arguments, file, "")
    if parsed:
        values |= _options(command.program, words, arguments, reading, command.files)
    found = follow(command, {**given, **values}) or found
    meant = script_means(found, tool, reading, {**given, **values})
    add_own_limit(reading, given, found.options, command.program)
    reading.run["model"] = meant.model
    if meant.training:
        reading.run["training"] = meant.training
    _fill(reading, tool, meant.values, command, meant.loaded)
    if meant.data:
        reading.run["program"].setdefault("data", {}).update(meant.data)
    if not reading.run["model"]:
        del reading.run["model"]
    return reading


def _trainer_of_config(command: Command) -> tuple[str | None, str]:
    """The trainer of TRL that the keys of a script's file tell, and how it was found."""
    _, own = split_own(command.words[1:], script_arguments(TRAINER))
    for config in own.get(CONFIG, []):
        tool, why = file_trainer(_file(command.files, config))
        if tool != TRAINER:
            return tool, why
    return None, ""


def _script_values(reading: Reading, command: Command, tool: str) -> Section:
    """The values of a script's arguments by the usual meaning of their names; its text cannot be
    read.
    """
    script, arguments = command.program, script_arguments(tool)
    words, own = split_own(command.words[1:], arguments)
    configs = own.pop(CONFIG, [])
    given = own_values(own)
    configs += [str(given.pop(name)) for name in _more_files(given, command.files)]
    values: Section = {}
    for config in configs:  # the keys of the script's own classes are read as its options are
        file = _file(command.files, config)
        known = {
            key: one for key, one in file.items() if renamed().get(key, key) in arguments.table
        }
        given = {**{key: one for key, one in file.items() if key not in known}, **given}
        values |= _sorted(reading, arguments, known, "")
    values |= _options(script, words, arguments, reading, command.files)
    files = {name: given.pop(name) for name in NAMED if name in given}
    values |= {NAMED[name]: command.files.data(str(one)) for name, one in files.items()}
    values = {**known_names(given, arguments.table), **values}
    if script in EXAMPLES and values.get("block_size") is None:
        values["block_size"] = WHOLE
        reading.assumed.append("block_size is the longest sequence that the model takes")
    add_own_limit(reading, given, None, script)
    add_dropped_limit(reading, {**given, **values}, script)
    return values


def _more_files(given: Values, files: NamedFiles) -> list[str]:
    """Options that name a file of arguments, such as --training_config, which is here.

    DeepSpeed's file is no such file: what a loop of its own takes from it is not known.
    """
    return [
        name
        for name, value in given.items()
        if name.endswith(("config", "config_file", "args", "args_file")) and name not in OTHER_FILES
        if isinstance(value, str) and value.endswith(FILES) and files.exists(value)
    ]


def read_data(data: Values, files: NamedFiles) -> Reading:
    """What a file of arguments means: of TrainingArguments, of TRL, or of Accelerate alone."""
    command = Command(words=("train.py",), files=files)
    if "distributed_type" in data:
        settings = file_settings(data, "the file")
        command = with_accelerate(command, LauncherOptions({}, ()), settings)
        reading = _reading(TRAINER)
        reading.assumed.append(f"{TRAINER} with its own defaults: Accelerate's file has no trainer")
        _fill(reading, TRAINER, {}, command)
        return reading
    tool, why = file_trainer(data)
    reading = _reading(tool)
    reading.assumed.append(f"{tool}, {why}")
    file, arguments = dict(data), script_arguments(tool)
    if tool in TRL.values():
        command = _launched(command, _taken_launch(file, arguments), reading)
    _fill(reading, tool, _sorted(reading, arguments, file, ""), command)
    return reading


def file_trainer(data: Values) -> tuple[str, str]:
    """The trainer, and how it was found."""
    shared = argument_table(TOOLS[TRAINER].arguments)
    found: dict[str, list[str]] = {}
    for tool in TRL.values():
        own = argument_table(TOOLS[tool].arguments).keys() - shared.keys()
        found[tool] = [key for key in data if key in own]
    for key, tool in TELLING.items():
        if key in data:
            found[tool].append(key)
    best = max(found, key=lambda tool: len(found[tool]))
    if not found[best]:
        return TRAINER, "because no argument is TRL's own"
    return best, f"because of {', '.join(found[best][:MOST_NAMED])}"


def _taken_own(file: Section, arguments: ScriptArguments, found: ScriptRecord) -> Section:
    """The keys of a file that the script's own classes declare, taken out of it."""
    own = [key for key in file if key in found.options and key not in arguments.trainer]
    return {key: file.pop(key) for key in own}


def _reading(tool: str) -> Reading:
    known = TOOLS.get(tool)
    return Reading(tool=tool, version=known.version if known else "")


def _taken_launch(file: Section, arguments: ScriptArguments) -> Section:
    """The launcher's keys, taken out of a file; those that the trainer has, too, are its own."""
    names = [key for key in file if _is_launch(key) and key not in arguments.table]
    return {key: file.pop(key) for key in names}


def _is_launch(name: str) -> bool:
    return name == "accelerate_config" or name in syntaxes()["accelerate"].names


def _launched(command: Command, launch: Section, reading: Reading) -> Command:
    """The command under accelerate launch, with the options of `trl` that are the launcher's."""
    name = launch.pop("accelerate_config", launch.pop("config_file", None))
    settings: Section = {}
    if isinstance(name, str):
        known = argument_data("accelerate_configs", OWN)
        data = known[name] if name in known else command.files.data(name, "--accelerate_config")
        settings = file_settings(data, name)
    words = []
    for key, value in launch.items():
        words += [f"--{key}"] if value is True else [f"--{key}", str(value)]
    launched = with_accelerate(command, split_options("accelerate", words), settings)
    reading.assumed += launched.assumed
    return replace(launched, assumed=())


def _file(files: NamedFiles, path: str) -> Section:
    data = files.data(path, "--config")
    if not isinstance(data, Mapping):
        raise InputError(f"--config {path}: it is an object of arguments, not {quoted(data)}")
    return dict(data)


def _options(
    title: str, words: list[str], arguments: ScriptArguments, reading: Reading, files: NamedFiles
) -> Section:
    """The values of options, those of a file that is named alone or by --config below them."""
    found = parse_options(title, words, arguments.table, arguments.syntax)
    values: Section = {}
    for path in found.positional:
        if path.endswith(FILES):
            values |= _sorted(reading, arguments, _file(files, path), "")
    return values | _sorted(reading, arguments, found.values, "--")


def _sorted(reading: Reading, arguments: ScriptArguments, given: Values, prefix: str) -> Section:
    new = {renamed().get(name, name): value for name, value in given.items()}
    return sort_keys(reading, arguments.table, new, prefix)


def _fill(
    reading: Reading, tool: str, values: Section, command: Command, loaded: Section | None = None
) -> None:
    """The sections of the run: model, program, launch."""
    deepspeed = values.pop("deepspeed", None)
    program_sections(reading, tool, values, command.files, loaded=loaded)
    arguments = script_arguments(tool).trainer
    meant = argument_values(arguments, reading.run["program"]["args"])
    if tool != TRAINER and meant["bf16"] is None:
        meant["bf16"] = not meant["fp16"]
    add_launch(reading, command, meant)
    if isinstance(deepspeed, str) and reading.script and not command.files.exists(deepspeed):
        why = "the file is not at hand; what DeepSpeed shards is not known, and left out"
        reading.limit(f"deepspeed={deepspeed}", why)
    elif deepspeed is not None:
        from ..trainer_launch.deepspeed_file import add_deepspeed_file

        named = isinstance(deepspeed, str)
        data = command.files.data(deepspeed, "--deepspeed") if named else deepspeed
        add_deepspeed_file(reading, data, meant)
    leave_out(reading, meant)


def is_deepspeed_chat(command: Command) -> bool:
    """Whether a command is one of DeepSpeed-Chat's: `main.py` with --deepspeed as a flag."""
    words = command.words
    if command.program != SCRIPT or FLAG not in words:
        return False
    after = words[words.index(FLAG) + 1 :][:1]
    return not after or after[0].startswith("-")


def read_deepspeed_chat(command: Command) -> Reading:
    """Step 1, supervised fine-tuning, as a run under DeepSpeed; later steps are refused."""
    table = argument_table(TABLE, OWN)
    options = parse_options(TITLE, command.words[1:], table, option_syntax(TABLE, OWN))
    reading = Reading(tool=TITLE, version="45b4b71", problems=options.problems)
    kept = sort_keys(reading, table, options.values, "--")
    reading.run["hardware"] = command.hardware
    later = next((title for name, title in LATER.items() if name in options.values), None)
    if later is not None:
        reading.run["program"] = {"tool": f"{TITLE.lower()} {later}"}
        return reading
    reading.assumed.append(
        f"{SCRIPT} is {TITLE}'s step 1: nothing in the command is of a later one"
    )
    values = argument_values(table, kept)
    if values["model_name_or_path"] is not None:
        reading.run["model"] = {"name": values["model_name_or_path"]}
    reading.run["training"] = _training(values)
    reading.run["engine"] = _engine(values)
    return reading


def _training(values: dict[str, Any]) -> dict[str, Any]:
    """dschat/utils/utils.py and step1 main.py: FusedAdam, gradients clipped to 1."""
    if values["dtype"] not in PRECISIONS:
        raise InputError(f"--dtype {quoted(values['dtype'])} must be 'fp16' or 'bf16'")
    training = {
        "batch_size": values["per_device_train_batch_size"],
        "seq_len": values["max_seq_len"],
        "gradient_accumulation_steps": values["gradient_accumulation_steps"],
        "precision": f"{values['dtype']}_mixed",
        "optimizer": "adamw",
        "gradient_clipping": 1.0,
    }
    if values["gradient_checkpointing"]:
        training["activation_checkpointing"] = "full"
    return training


def _engine(values: dict[str, Any]) -> dict[str, Any]:
    """dschat/utils/ds_utils.py get_train_ds_config."""
    stage = values["zero_stage"]
    engine: dict[str, Any] = {"type": "deepspeed", "zero_stage": stage}
    if stage:
        engine["overlap_comm"] = True
    if stage == 3:
        engine |= {
            "stage3_param_persistence_threshold": 10_000,
            "stage3_max_live_parameters": 30_000_000,
            "stage3_prefetch_bucket_size": 30_000_000,
        }
    if values["offload"]:
        engine["offload_optimizer"] = "cpu"
        engine |= {"offload_param": "cpu"} if stage == 3 else {}
    return engine
