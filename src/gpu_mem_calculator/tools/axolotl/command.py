"""The words of `axolotl train`: the launcher after `--`, the file, options that replace its keys.

Axolotl 067b021 cli/main.py (train), cli/utils/train.py (launch_training), cli/config.py (load_cfg).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...runfile.text.errors import InputError, quoted
from ..launchers.launch import read_launch
from ..reading.command import Command
from ..reading.options import OptionSyntax, option_syntax, parse_options
from ..translation.arguments import Values, argument_table
from .draft import mapping, whole
from .launch import FOLDER

FILES = (".yml", ".yaml", ".json")
LAUNCHERS = {"accelerate": ("accelerate", "launch"), "torchrun": ("torchrun",), "python": ()}
SECTIONS = ("trl", "vllm")  # keys of theirs are written with a dot: --trl.beta
COMMAND = "command"
OF_LAUNCHER = ("num_gpus", "num_nodes", "accelerate", "launcher")  # what a launcher says


def launched(command: Command) -> tuple[Command, list[str]]:
    """The command with what its launcher says, and the words after `axolotl train`."""
    if command.module:
        return command, list(command.words[1:])
    words = list(command.words[2:])
    if "--" not in words:
        return command, words
    at = words.index("--")
    words, arguments = words[:at], words[at + 1 :]
    name = _launcher(words)
    if not LAUNCHERS[name] or not arguments:
        return command, words
    inner = [*LAUNCHERS[name], *arguments, "-m", "axolotl.cli.train", "FILE"]
    found = read_launch(inner, command.files, command.environment)
    if found.num_gpus is not None or command.num_gpus is None:
        command = replace(command, **{name: getattr(found, name) for name in OF_LAUNCHER})
    return command, words


def _launcher(words: Sequence[str]) -> str:
    """The value of --launcher."""
    name = "accelerate"
    for at, word in enumerate(words):
        option, sign, value = word.partition("=")
        if option == "--launcher":
            name = value if sign else words[at + 1] if at + 1 < len(words) else ""
    if name not in LAUNCHERS:
        raise InputError(f"--launcher {name}: it can be {', '.join(LAUNCHERS)}")
    return name


class FileAndOptions(Struct, kw_only=True):
    """The file that a command names, its options, and a sentence for each that is wrong."""

    file: str
    values: dict[str, Any]
    problems: list[str]

    @property
    def num_processes(self) -> int | None:
        """--num-processes, which `axolotl train` hands to accelerate."""
        return whole(self.values.get("num_processes"), "--num-processes")

    def own(self) -> dict[str, Any]:
        """Options that are no keys of a file."""
        return {k: v for k, v in self.values.items() if k in argument_table(COMMAND, FOLDER)}

    def changed(self, data: Values) -> dict[str, Any]:
        """The file's data with the options in the place of its keys; those of a section are put
        into a copy of it.
        """
        found = dict(data)
        for name, value in self.values.items():
            section, dot, key = name.partition(".")
            if dot:
                found[section] = {**mapping(found.get(section), section), key: value}
            elif name not in argument_table(COMMAND, FOLDER):
                found[name] = value
        return found


def file_and_options(words: Sequence[str]) -> FileAndOptions:
    """The file and the options of `axolotl train`."""
    at = next((i for i, word in enumerate(words) if _is_file(words, i)), None)
    if at is None:
        raise InputError("axolotl train needs a file, such as axolotl train qlora.yml")
    rest = [*words[:at], *words[at + 1 :]]
    parsed = parse_options("axolotl train", rest, *_tables())
    problems = list(parsed.problems)
    problems += [f"{quoted(word)} is not read after the file" for word in parsed.strays]

    return FileAndOptions(file=str(words[at]), values=parsed.values, problems=problems)


def _is_file(words: Sequence[str], at: int) -> bool:
    """Whether a word is the file: not an option, nor the value of one."""
    word, before = words[at], words[at - 1] if at else ""
    valued = before.startswith("--") and "=" not in before
    return word.lower().endswith(FILES) and not word.startswith("-") and not valued


def _tables() -> tuple[dict[str, Any], OptionSyntax]:
    """Every option with its syntax: the file's keys, the sections' keys, the command's own."""
    table = {**argument_table("keys", FOLDER), **argument_table(COMMAND, FOLDER)}
    switches = option_syntax("keys", FOLDER).switches | option_syntax(COMMAND, FOLDER).switches
    for name in SECTIONS:
        table |= {f"{name}.{key}": row for key, row in argument_table(name, FOLDER).items()}
        own = option_syntax(name, FOLDER).switches
        switches |= {f"{name}.{key}" for key in own}
    return table, OptionSyntax(switches=frozenset(switches))
