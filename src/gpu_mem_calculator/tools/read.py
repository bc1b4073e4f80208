"""The door: whatever somebody gives becomes a run file, the program of a tool included.

A run file, a model's config.json, a command, a script, a manifest, or another tool's file: as its
path, its text, its words or its data. The command line, Python, the service and the page all ask
here. What differs between them is in their `Door`, and how they show the notes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ..runfile.config import RunFile
from ..runfile.file_kinds import BESIDE, as_run_file, is_run_file
from ..runfile.program import Program, Translation
from ..runfile.read import NAMES_NO_MODEL, Releases, as_dict, parse, with_settings
from ..runfile.sections import SECTIONS
from ..runfile.text.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path
    from typing import TypeAlias

    from ..run.limits import Limit
    from .reading.reading import Reading
    from .releases.named import KnownReleases, Named

    Anything: TypeAlias = str | Path | Sequence[str] | Mapping[str, Any] | RunFile

NAMES_ONE = (
    "--model {} is for DeepSpeed's JSON, which names none; leave it out, or use --set"
    " model.name=NAME"
)
OURS = {*SECTIONS, *BESIDE}
Options = Callable[[Mapping[str, Any]], tuple[Sequence[str], Sequence[str]]]


def no_options(_: Mapping[str, Any]) -> tuple[Sequence[str], Sequence[str]]:
    """Neither settings nor notes."""
    return (), ()


class Door(Struct, frozen=True, kw_only=True):
    """What the one who asks knows beside what is given.

    - `folder`: where the files that a command names are opened; None where no file may be opened
    - `files`: texts of files that it may name, by the ends of their paths; `wanted` gets the names
      of those that are missing, where none may be opened
    - `gpu_bytes`: memory of one GPU, on which some tools' defaults depend, whatever the command
      says; `machine_bytes`: the same where the command does not say its card
    - `model`: its name, for a file of another tool
    - `releases`: those of the tools, where a command would run
    - `options`: for the data of a run its `section.key=value` settings, and what they assume
    """

    folder: str | None = ""
    files: Mapping[str, str] = {}
    wanted: list[str] | None = None
    gpu_bytes: int | None = None
    machine_bytes: int | None = None
    model: str | None = None
    releases: KnownReleases | None = None
    options: Options = no_options

    def on_card(self, name: str) -> Door:
        """The same for runs on a card that is named, whatever they say of their own; raises where
        no card has that name.
        """
        from ..runfile.config import GPUConfig
        from ..runfile.resolve.hardware import find_hardware
        from .reading.tools import CARD_KEYS

        def options(run: Mapping[str, Any]) -> tuple[Sequence[str], Sequence[str]]:
            settings, notes = self.options(run)
            others = sorted((run.get("hardware") or {}).keys() & CARD_KEYS - {"gpu"})
            own = [f"hardware.{key}=null" for key in others]
            return (*own, f"hardware.gpu={name}", *settings), notes

        size = find_hardware(GPUConfig(gpu=name), None).card_bytes
        return replace(self, gpu_bytes=size, options=options)


HERE = Door()  # a user's own process
TEXT_ALONE = Door(folder=None)  # a service, which opens no files


class Asked(Struct, frozen=True, kw_only=True, dict=True):
    """What was read.

    - `run`: the data of its run file
    - `notes`: what was assumed in reading it, a sentence each
    - `reading`: the command or file of another tool; None where it was a run file
    - `source`, `door`: what was given and with what it was read, where that is a tool's
    """

    run: dict[str, Any]
    notes: tuple[str, ...] = ()
    reading: Reading | None = None
    source: Any = None
    door: Door = HERE

    @cached_property
    def file(self) -> RunFile:
        """The checked run file, its program translated; raises all problems at once."""
        return self.checked()

    def checked(self, more_problems: Callable[[Any], Iterable[str]] = lambda _: ()) -> RunFile:
        """The same.

        more_problems: what is wrong with the data besides its form, asked for if the form is wrong
        """
        if self.is_deepspeed and "model" not in self.run:
            raise InputError(NAMES_NO_MODEL)
        if "file" not in self.__dict__:
            self.__dict__["file"] = parse(self.run, more_problems, _translate)
        found: RunFile = self.__dict__["file"]
        return found

    @property
    def is_deepspeed(self) -> bool:
        """Whether it was DeepSpeed's JSON, which names no model."""
        return self.reading is not None and self.reading.is_deepspeed

    @property
    def limits(self) -> tuple[Limit, ...]:
        """What of a command or a file is not modelled."""
        return tuple(self.reading.limits) if self.reading is not None else ()

    @property
    def no_memory(self) -> tuple[str, ...]:
        """Keys that take no memory."""
        keys = self.reading.keys if self.reading is not None else {}
        return tuple(key for key, effect in keys.items() if effect == "free")

    @property
    def translation(self) -> Translation | None:
        """What its program means."""
        return self.file.translation

    def at(self, named: Named) -> Asked:
        """The same at releases that are named; raises where it uses none of them."""
        from .releases.apply import with_names_at_release, with_releases
        from .releases.named import KnownReleases

        again, written = self, frozenset[str]()
        if self.source is not None:
            again = read(self.source, replace(self.door, releases=KnownReleases(named)))
            written = again.reading.written if again.reading is not None else written
        run = with_names_at_release(with_releases(again.run, named), written)
        return replace(again, run=run)

    def with_options(self, options: Options) -> Asked:
        """The same with settings of the one who asks."""
        if options is no_options:
            return self
        settings, notes = options(self.run)
        return replace(self, run=with_settings(self.run, settings), notes=(*self.notes, *notes))


def read(source: Anything | Asked, door: Door = HERE) -> Asked:
    """What a source asks: raises all its problems at once, also where it asks several things."""
    if isinstance(source, Asked):
        return source
    found = read_all(source, door)
    if len(found) > 1:
        names = ", ".join(one.reading.name for one in found if one.reading is not None)
        title = source if isinstance(source, str) and "\n" not in source else "it"
        why = f"{title} starts {len(found)} commands ({names}), and a run is one"
        raise InputError(f"{why}; use gpu-mem-calc check")
    if found[0].reading is None:
        return found[0]
    if found[0].reading.problems:
        raise InputError(found[0].reading.problems)
    return replace(found[0], source=source, door=door)


def read_at_releases(source: Anything, door: Door) -> Asked:
    """The same at the releases that the door names; raises where it uses none of them."""
    asked = read(source, door)
    return asked if door.releases is None else asked.at(door.releases.named)


def read_all(source: Anything, door: Door = HERE) -> list[Asked]:
    """What a source asks: one thing for each command of a script, container of a manifest or task.

    The problems of one of several are in its reading.
    """
    if isinstance(source, RunFile):
        asked = Asked(run=as_dict(source)).with_options(door.options)
        if source.translation is not None and door.options is no_options:
            asked.__dict__["file"] = source  # it was read here, and its program is translated
        return [asked]
    given: Any = source
    if _is_own(given):
        return [_own(given, door)]
    from .reading import PATH

    kind, text = _kind(given, door), ""
    if not kind:
        parse(given)  # says what a run file is
    if kind == PATH:
        from ..runfile.text.text_data import file_text

        given = os.fspath(given)
        text = file_text(given)
        data = _run_file(text, given)
        if data is not None:
            return [_own(as_run_file(data, given), door)]
    from .conversion.source import read_source

    return [_asked(found, door) for found in read_source(given, kind, door, text)]


def _kind(source: Any, door: Door) -> str:
    """What a source is given as; empty for what nothing is given as."""
    from .reading import COMMAND, DATA, PATH, TEXT, WORDS

    if isinstance(source, Mapping):
        return DATA
    if isinstance(source, os.PathLike):
        return PATH
    if not isinstance(source, str):
        words = isinstance(source, list | tuple) and all(isinstance(one, str) for one in source)
        return WORDS if words and source else ""
    text = source.strip()
    if door.folder is None or "\n" in text or text[:1] in ("{", "[", ""):
        return TEXT
    return COMMAND if is_command(source) else PATH


def is_command(text: str) -> bool:
    """Whether a text is a command in quotes, or names a script or a Modelfile."""
    from .reading import MODELFILE, PYTHON, SCRIPTS

    name = os.path.basename(text)
    script = text.lower().endswith((*SCRIPTS, PYTHON)) or name.startswith(MODELFILE)
    return script or (" " in text.strip() and not os.path.exists(text))


def _run_file(text: str, path: str) -> Any:
    """The data of a file's text where it is a run file; None where it is another, or none."""
    from ..runfile.text.text_data import parse_file_text

    try:
        data = parse_file_text(text, path)
    except InputError:
        return None
    return data if _is_own(data) else None


def _is_own(data: Any) -> bool:
    """Whether data is a run file; the tools are asked where it has a key that no run file has."""
    if not is_run_file(data) or data.keys() <= OURS:
        return is_run_file(data)
    from .reading.tools import file_format

    return file_format(data) is None


def _own(data: Mapping[str, Any], door: Door) -> Asked:
    """A run file."""
    if door.model is not None:
        raise InputError(NAMES_ONE.format(door.model))
    return Asked(run=dict(data)).with_options(door.options)


def _asked(reading: Reading, door: Door) -> Asked:
    """A command or a file of another tool; a run file that was found among them."""
    asked = Asked(run=reading.run_file, notes=(*reading.assumed,), reading=reading)
    if reading.problems:
        return asked
    if door.model is not None:
        if reading.is_own:
            raise InputError(NAMES_ONE.format(door.model))
        asked.run["model"] = {"name": door.model}
    return asked.with_options(door.options)


def _translate(
    data: Mapping[str, Any], releases: Releases
) -> tuple[dict[str, Any], Program, Translation]:
    from .program_section import with_program  # it knows the tools, which most runs do not load

    return with_program(data, releases)
