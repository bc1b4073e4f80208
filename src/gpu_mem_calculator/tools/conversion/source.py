"""What a user gives is recognised: a path, a text, the words of a command, or data."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ... import catalog
from ...catalog.hub.access import access
from ...catalog.hub.bounds import HubError
from ...catalog.hub.names import hub_name, page
from ...ledger.secrets import hidden_words, hide_forms
from ...runfile.file_kinds import as_run_file, is_model_config, is_run_file
from ...runfile.sections import SECTIONS
from ...runfile.text.errors import InputError
from ...runfile.text.files import STANDARD_INPUT, STDIN, read_text
from ..deepspeed.detect import is_deepspeed
from ..launchers.launch import read_launch
from ..manifests.commands import manifest_files
from ..reading import COMMAND, DATA, MODELFILE, PATH, SCRIPTS, TEXT
from ..reading.card import naming_card
from ..reading.command import Command
from ..reading.named_files import NamedFiles
from ..reading.reading import CONFIG, DEEPSPEED, MODEL, RUN_FILE, Effect, Reading
from ..reading.tools import FORMATS, file_format, read_command, read_data, safe_reading
from ..skypilot.launch import task_file

if TYPE_CHECKING:
    from ..read import Door

SHELLS = ("bash", "sh", "zsh", "dash", "source", ".")
ASSIGNED = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)  # a variable in front of a command
SBATCH = "sbatch"
YAML = (".yaml", ".yml")
ENDINGS = (*YAML, ".json", ".toml")
PASTED = "what was pasted"
KINDS = "a run file, a config.json, a command, another tool's file, or a model's name"
NAME = re.compile(r"[^\s{}\[\]:=,]+|https?://\S+")  # one word, or an address


def read_source(source: Any, kind: str, door: Door, text: str = "") -> list[Reading]:
    """What a source means: one reading, or one for each command of a script and for each
    container of a manifest. The problems of one of several are in its reading.

    source: a path, with its `text`; a text; the words of a command; or data, as `kind` says
    """
    opens = door.folder is not None and access().files
    folder = Path(door.folder or "") if opens else None
    given = {os.path.normpath(name).lstrip("/"): text for name, text in door.files.items()}
    files = NamedFiles(folder, releases=door.releases, given=given, wanted=door.wanted)
    reader = _Source(files, door)
    if kind == DATA:
        return [reader.data(source, "this")]
    if kind == PATH:
        return reader.path(source, text)
    if kind == TEXT:
        return reader.pasted(source)
    return reader.words([source] if kind == COMMAND else source)


class _Source(Struct, frozen=True):
    """Reads what a user gave, with the files that may be opened and what the user knows."""

    files: NamedFiles
    door: Any

    def words(self, words: Sequence[str]) -> list[Reading]:
        """The words of a command, or the name of one file."""
        words = hidden_words(words)
        name = words[0]
        if list(words) == [STDIN] and self.files.folder is not None:
            return self.pasted(read_text(STDIN), STANDARD_INPUT)
        if len(words) == 1 and len(name.split()) > 1 and not self.files.exists(name):
            return self.script(name)  # a whole command in quotes
        applied = manifest_files(words, self.files)
        if applied:
            return self.applied(applied)
        task = task_file(words)
        if task:
            return self.task(self.files.data(task[0]), task[0], task[1])
        if name == SBATCH:
            return self.job(words[1:])
        variables = dict(one.split("=", 1) for one in takewhile(ASSIGNED.fullmatch, words))
        rest = list(words[len(variables) :])
        script = rest[:1] and rest[0].endswith(SCRIPTS) and self.files.exists(rest[0])
        if rest and variables and (rest[0] in SHELLS or script):
            name, words = rest[0], rest
        if name in SHELLS and len(words) > 1 and not words[1].startswith("-"):
            return self.script(self.files.text(words[1]), words[2:], variables)
        if name.endswith(SCRIPTS):
            return self.script(self.files.text(name), words[1:], variables)
        if len(words) == 1 and name.endswith(ENDINGS):
            several = self.documents(self.files.text(name)) if name.endswith(YAML) else []
            found = several or [self.data(self.files.data(name), name)]
            if found[0].tool == RUN_FILE and not is_run_file(found[0].run):
                known = ", ".join(one.title for one in FORMATS.values() if one.keys)
                raise InputError(f"{name} is no file of a tool that is known; known are {known}")
            return found
        if len(words) == 1 and name.rpartition("/")[2].startswith(MODELFILE):
            return [self.modelfile(self.files.text(name))]
        return [self.command(read_launch(words, self.files))]

    def path(self, path: str, text: str) -> list[Reading]:
        """A file; the files that it names are looked for beside it."""
        from ...runfile.text.text_data import parse_file_text

        if path == STDIN:
            return self.pasted(text, STANDARD_INPUT)
        beside = replace(self, files=replace(self.files, folder=Path(path).parent))
        several = beside.documents(text) if path.lower().endswith(YAML) else []
        if several:
            return several
        data = parse_file_text(text, path)
        if not isinstance(data, Mapping):
            kind = {"list": "a list", "NoneType": "empty"}.get(type(data).__name__)
            wanted = "a run file is an object with a 'model' section"
            raise InputError(f"{path}: {wanted}, this one is {kind or 'a single value'}")
        return [beside.data(data, path)]

    def pasted(self, text: str, where: str = PASTED) -> list[Reading]:
        """What a text means: a model's name, a command, a script, or what a file has."""
        from ...runfile.text.text_data import parse_any_text
        from ..ollama.modelfile import is_modelfile
        from ..releases.apply import with_releases
        from ..releases.named import Named
        from ..releases.pins import frozen
        from ..script.pasted import SCRIPT, command_words, python_list, python_script, unwrapped

        text = hide_forms(text)
        listed, rest = frozen(text, where)
        if listed and not rest.strip():
            raise InputError(f"{where} lists packages alone; add the command that runs with them")
        if listed:
            found = replace(self, files=self.files.finding(*listed)).pasted(rest, where)
            return [replace(one, run=with_releases(one.run, Named(), listed)) for one in found]
        if NAME.fullmatch(text.strip()):
            return [Reading(tool=MODEL, run={"model": {"name": model_name(text.strip())}})]
        script = python_script(text)
        if script is not None:
            written = replace(self.files, written={**self.files.written, SCRIPT: script})
            return [self.command(read_launch(("python", SCRIPT), written))]
        if is_modelfile(text):
            return [self.modelfile(text)]
        several = self.documents(text)
        if several:
            return several
        try:
            data = parse_any_text(text, where)
        except InputError:
            data = python_list(text)
            if data is None and text.lstrip()[:1] in ("{", "[", ""):
                raise
            data = text if data is None else data
        if words := command_words(data) or self.starting(text):
            return self.words(words)
        if isinstance(data, str) or _has_words(data):
            return self.script(unwrapped(text))
        if not isinstance(data, Mapping):
            raise InputError(f"{where} is not {KINDS}")
        return [self.data(data, where)]

    def starting(self, text: str) -> list[str] | None:
        """The words of a text that is one command, which starts the jobs of files."""
        from ..shell.tokens import with_windows_paths

        try:
            words = shlex.split(with_windows_paths(text)) if "\n" not in text.strip() else []
        except ValueError:  # a quote without its end
            return None
        if not words:
            return None
        starts = words[0] == SBATCH or manifest_files(words, self.files) or task_file(words)
        return words if starts else None

    def command(self, command: Command) -> Reading:
        """One command."""
        size = self.door.gpu_bytes
        if size is None and command.card is None:
            size = self.door.machine_bytes
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

    def script(
        self, text: str, arguments: Sequence[str] = (), variables: Mapping[str, str] | None = None
    ) -> list[Reading]:
        """The commands of a shell script that train or serve; `variables` stand in front of it."""
        from ..shell.read import main_commands, read_script

        return self.commands(main_commands(read_script(text, self.files, arguments, variables)))

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

        memory = self.door.gpu_bytes or self.door.machine_bytes
        return safe_reading(read_modelfile(text, self.files, memory))

    def data(self, data: Mapping[str, Any], name: str) -> Reading:
        """The data of a file: a run file's, a model's config.json, or another tool's."""
        if file_format(data) is not None:
            found = read_data(data, self.files)
            assert found is not None
            return found
        if is_model_config(data):
            rest = f"{name} is a model's config.json; the rest of the run has its defaults"
            return Reading(tool=CONFIG, run={"model": {"config": data}}, assumed=[rest])
        data = as_run_file(data, name)
        if not isinstance(data, Mapping):
            raise InputError(f"{name} is not {KINDS}")
        if is_deepspeed(data):
            return self.deepspeed(data)
        if name == PASTED and not data.keys() & SECTIONS.keys():
            unknown = next(iter(data), None)
            said = "" if unknown is None else f"{unknown!r} is not a section of a run file, and "
            raise InputError(f"{said}{PASTED} is not {KINDS}")
        return Reading(tool=RUN_FILE, run=dict(data))

    def deepspeed(self, data: Mapping[str, Any]) -> Reading:
        """DeepSpeed's JSON, whose "auto" and number of ranks depend on the rest of the run."""
        from ..deepspeed.read import run_file

        settings, _ = self.door.options({"engine": {"type": "deepspeed"}})
        found = run_file(data, model=self.door.model, settings=settings)
        keys: dict[str, Effect] = dict.fromkeys(found.no_memory, "free")
        return Reading(tool=DEEPSPEED, run=found.data, keys=keys, assumed=list(found.assumed))


def _has_words(data: Any) -> bool:
    """Whether a key has several words: of a command with JSON in it, YAML makes an object."""
    return isinstance(data, Mapping) and any(" " in str(key).strip() for key in data)


def model_name(word: str) -> str:
    """The name of a model: a preset, `owner/model`, or the hub's page of it."""
    if "://" in word or word.startswith(("huggingface.co/", "hf.co/")):
        address = word if "://" in word else f"https://{word}"
        try:
            name = page(address.replace("http://", "https://", 1))
        except HubError as error:
            raise InputError(f"{word[:200]!r} is not a model: {error}") from None
        if name is None:
            raise InputError(f"{word[:200]!r} is not a model's page on huggingface.co")
        return name
    if catalog.find("index", word) is None and hub_name(word) is None:
        raise InputError(f"{word[:80]!r} is not the name of a model; give it as owner/model")
    return word
