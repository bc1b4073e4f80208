"""What a user puts after `check` or pastes: a command, a script, or a file of another tool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.secrets import hidden_words, hide_forms
from ...runfile.file_kinds import is_run_file
from ...runfile.text.errors import InputError
from ..launchers.launch import read_launch
from ..manifests.commands import manifest_files
from ..reading import MODELFILE, SCRIPTS
from ..reading.card import naming_card
from ..reading.command import Command
from ..reading.named_files import NamedFiles
from ..reading.reading import Reading
from ..reading.tools import FORMATS, read_command, read_data, safe_reading
from ..skypilot.launch import task_file

SHELLS = ("bash", "sh", "zsh", "dash", "source", ".")
SBATCH = "sbatch"
YAML = (".yaml", ".yml")
DATA = (*YAML, ".json", ".toml")
RUN_FILE = "run file"
PASTED = "what was pasted"


def read_source(
    words: Sequence[str],
    files: NamedFiles,
    gpu_bytes: int | None = None,
    machine_bytes: int | None = None,
) -> list[Reading]:
    """What a command starts: one reading, or one for each command of a script and for each
    container of a manifest. The problems of one of several are in its reading.

    gpu_bytes: memory of one GPU, on which some tools' defaults depend, whatever the command says;
    machine_bytes: the same where the command does not say its card
    """
    if not words:
        raise InputError("there is no command to check; write it after gpu-mem-calc check")
    words = hidden_words(words)
    source, name = _Source(files, gpu_bytes, machine_bytes), words[0]
    if len(words) == 1 and len(name.split()) > 1 and not files.exists(name):
        return source.script(name)  # a whole command in quotes
    applied = manifest_files(words, files)
    if applied:
        return source.applied(applied)
    task = task_file(words)
    if task:
        return source.task(files.data(task[0]), task[0], task[1])
    if name == SBATCH:
        return source.job(words[1:])
    if name in SHELLS and len(words) > 1 and not words[1].startswith("-"):
        return source.script(files.text(words[1]), words[2:])
    if name.endswith(SCRIPTS):
        return source.script(files.text(name), words[1:])
    if len(words) == 1 and name.endswith(DATA):
        several = source.documents(files.text(name)) if name.endswith(YAML) else []
        return several or [source.data(files.data(name), name)]
    if len(words) == 1 and name.rpartition("/")[2].startswith(MODELFILE):
        return [source.modelfile(files.text(name))]
    return [source.command(read_launch(words, files))]


def read_pasted(text: str) -> list[Reading]:
    """What a pasted text means: a command, a script, a manifest, or a tool's file."""
    from ...runfile.text.text_data import parse_any_text
    from ..ollama.modelfile import is_modelfile

    source, text = _Source(NamedFiles(None)), hide_forms(text)
    if is_modelfile(text):
        return [source.modelfile(text)]
    several = source.documents(text)
    if several:
        return several
    try:
        data = parse_any_text(text, PASTED)
    except InputError:
        data = None
    if not isinstance(data, Mapping):
        return source.script(text)
    return [source.data(data, PASTED)]


class _Source(Struct, frozen=True):
    """Reads what a user gave, with the files that may be opened and the memory of one GPU."""

    files: NamedFiles
    gpu_bytes: int | None = None
    machine_bytes: int | None = None

    def command(self, command: Command) -> Reading:
        """One command."""
        size = self.gpu_bytes
        if size is None and command.card is None:
            size = self.machine_bytes
        with naming_card(command.card):
            return read_command(replace(command, gpu_bytes=size))

    def commands(self, commands: Sequence[Command]) -> list[Reading]:
        """Several commands; one that cannot be read does not hide the others."""
        if len(commands) == 1:
            return [self.command(commands[0])]
        return [self._tried(one) for one in commands]

    def _tried(self, command: Command) -> Reading:
        try:
            return self.command(command)
        except InputError as error:
            title = command.program
            return Reading(tool=title, name=command.name or title, problems=list(error.problems))

    def script(self, text: str, arguments: Sequence[str] = ()) -> list[Reading]:
        """The commands of a shell script that train or serve."""
        from ..shell.read import main_commands, read_script

        return self.commands(main_commands(read_script(text, self.files, tuple(arguments))))

    def job(self, words: Sequence[str]) -> list[Reading]:
        """The script that sbatch gets; its options win over the lines in the script."""
        from ..launchers.launcher_options import split_options

        rest = split_options("srun", words).rest
        if not rest:
            raise InputError("sbatch needs a script; name it behind the options")
        options = words[: len(words) - len(rest)]
        lines = "".join(f"\n#SBATCH {one}" for one in [" ".join(options)] if one)
        return self.script(self.files.text(rest[0]) + lines, rest[1:])

    def documents(self, text: str) -> list[Reading]:
        """The containers of a manifest, or the commands of SkyPilot's tasks; none where the text is
        neither.
        """
        from ...runfile.text.files import MOST_SLOW_BYTES
        from ...runfile.text.yaml_text import parse_yaml_documents
        from ..manifests.read import is_manifest, read_manifest
        from ..skypilot.read import is_task

        if len(text) > MOST_SLOW_BYTES:
            return []
        try:
            documents = parse_yaml_documents(text)
        except (ValueError, RecursionError):  # the reader of data says what is wrong
            return []
        tasks = [one for one in documents if is_task(one)]
        if tasks:
            return [one for task in tasks for one in self.task(task, "the task")]
        if not documents or not is_manifest(documents[0]):
            return []
        return self.commands(read_manifest(documents, self.files))

    def applied(self, names: Sequence[str]) -> list[Reading]:
        """The containers of the manifests that a command such as kubectl apply names."""
        text = "\n---\n".join(self.files.text(name) for name in names)
        found = self.documents(text)
        if not found:
            raise InputError(f"{', '.join(names)}: no manifest of Kubernetes, and no compose file")
        return found

    def task(self, data: Any, name: str, options: Mapping[str, Any] | None = None) -> list[Reading]:
        """The commands of a SkyPilot task."""
        from ..skypilot.read import is_task, read_task

        if not is_task(data):
            raise InputError(f"{name} is no task of SkyPilot; it needs resources and run")
        return self.commands(read_task(data, self.files, options))

    def modelfile(self, text: str) -> Reading:
        """A Modelfile of Ollama."""
        from ..ollama.read import read_modelfile

        memory = self.gpu_bytes or self.machine_bytes
        return safe_reading(read_modelfile(text, self.files, memory))

    def data(self, data: Any, name: str) -> Reading:
        """The data of a file: a run file, or another tool's."""
        if is_run_file(data):
            return safe_reading(Reading(tool=RUN_FILE, run=dict(data)))
        found = read_data(data, self.files) if isinstance(data, Mapping) else None
        if found is None:
            known = ", ".join(one.title for one in FORMATS.values() if one.keys)
            raise InputError(f"{name} is no file of a tool that is known; known are {known}")
        return found
