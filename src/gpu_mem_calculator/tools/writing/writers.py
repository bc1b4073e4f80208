"""The formats that a run can be written in, and the writer of each."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from importlib import import_module

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ...run.served import PLACEHOLDER
from ...runfile.config import RunFile
from ...runfile.resolve.resolved_run import ResolvedRun
from ...runfile.text.errors import InputError, nearest
from ..rows import WRITE, tool_rows
from .unsaid import read_back, unsaid_sentences
from .written import Written, comment_lines, launch_words

UNNAMED = f"{PLACEHOLDER} stands for the name or path of the model"
UNSAID = "Not as in the run, because {title} has no key for it:"
Writer = Callable[[RunFile, ResolvedRun], str | Written]


class OutputFormat(Struct, frozen=True, kw_only=True):
    """A format: its title, its writer, and what can be written in it.

    - `module`: beside this folder; its `write(file, resolved)`, or the function that `function`
      names, returns the text of the file, or a `Written`
    - `endings`: the functions of other kinds of text, by the ending of the file
    - `filename`: the file's usual name
    - `start`: the command that uses it, with {file}, with {launch} for the launcher of all GPUs,
      and with {nodes} and {gpus} for DeepSpeed's; empty where the file is a command or a run file
    - `trains`, `serves`: whether training runs and servers can be written in it
    - `read`: how its reader takes the text (unsaid.py), to find what the text does not say;
      empty where the writer itself knows
    - `comments`: whether it may have comments
    - `adapters`: the place of its tool among those that train adapters from one file; 0 for others
    - `page`: whether the page offers it
    - `options`: whether its keys are options of the tool's command
    """

    title: str
    module: str
    filename: str
    start: str = ""
    function: str = "write"
    endings: Mapping[str, str] = {}
    trains: bool = True
    serves: bool = False
    read: str = ""
    comments: bool = True
    adapters: int = 0
    page: bool = False
    options: bool = False


# One row for each format, by the name in `convert --to`.
WRITERS: Mapping[str, OutputFormat] = msgspec.convert(tool_rows(WRITE), dict[str, OutputFormat])


def write_run(
    name: str, file: RunFile, resolved: ResolvedRun, *, output: str | None = None
) -> Written:
    """A run in the format of a name; what the format cannot say is in comments, or in `unsaid`.

    output: the name of the file, whose ending chooses between the texts of a format
    """
    form = find_format(name)
    if problem := _kind_problem(form, resolved):
        raise InputError(problem)
    made = _writer(form, output)(file, resolved)
    written = made if isinstance(made, Written) else Written(text=made)
    if form.read:
        data = read_back(form.read, written.text, written.beside)
        sentences = unsaid_sentences(form.title, file, resolved, data) if data else ()
        written = replace(written, unsaid=(*written.unsaid, *sentences))
    written = _complete(form, written, resolved, output or form.filename)
    if PLACEHOLDER in re.findall(r"\w+", written.text):
        written = replace(written, notes=(*written.notes, UNNAMED))
    if not form.comments or (output or "").endswith(".json"):
        return written
    start = (f"start: {written.start}",) if written.start else ()
    unsaid = _listed(form.title, written.unsaid)
    head = comment_lines((*start, *written.notes, *unsaid))
    return replace(written, text=f"{head}{written.text}", commented=True)


def _listed(title: str, unsaid: tuple[str, ...]) -> tuple[str, ...]:
    head = UNSAID.format(title=title)
    return (head, *(f"  {sentence}" for sentence in unsaid)) if unsaid else ()


def find_format(name: str) -> OutputFormat:
    """The format of a name."""
    if name not in WRITERS:
        hint = nearest(name, WRITERS)
        raise InputError(f"{name!r} is not a format; it can be {', '.join(WRITERS)}{hint}")
    return WRITERS[name]


def _kind_problem(form: OutputFormat, resolved: ResolvedRun) -> str:
    """A sentence where a format is for servers and the run trains, or the other way round."""
    serves = resolved.run.new_tokens is not None
    if form.serves if serves else form.trains:
        return ""
    does, other = ("serves", "trains") if serves else ("trains", "serves")
    known = [name for name, one in WRITERS.items() if (one.serves if serves else one.trains)]
    return f"the run {does} a model, and {form.title} {other} one; choose {', '.join(known)}"


def _writer(form: OutputFormat, output: str | None) -> Writer:
    """The function that writes a format, by the ending of the file."""
    ending = os.path.splitext(output or "")[1].lower()
    module = import_module(f"..{form.module}", __package__)
    writer: Writer = getattr(module, form.endings.get(ending, form.function))
    return writer


def _complete(form: OutputFormat, written: Written, resolved: ResolvedRun, path: str) -> Written:
    """The result with the file's name and the command that uses it."""
    start = written.start or form.start
    hardware = resolved.hardware
    named = os.path.basename(path) if written.beside else path
    words = {
        "file": shlex.quote(named),
        "gpus": hardware.num_gpus // hardware.num_nodes,
        "nodes": f"--num_nodes {hardware.num_nodes} " if hardware.num_nodes > 1 else "",
        "launch": launch_words(resolved),
    }
    return replace(written, filename=written.filename or form.filename, start=start.format(**words))
