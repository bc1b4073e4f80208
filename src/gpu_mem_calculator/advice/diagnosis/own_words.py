"""A change of a run in the words of its own tool: the options or keys that become others; and
advice with the options of the tool that printed a log.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Any

from ...catalog.kept import read_table
from ...runfile.read import with_settings
from ...runfile.resolve.resolve import resolve
from ...runfile.text.errors import InputError
from ...tools.read import Asked, read
from ...tools.rows import FOLDER
from ...tools.writing.writers import WRITERS, OutputFormat, write_run

YAML_KEY = ": "
FILE = re.compile(r"\n|\.(?:ya?ml|json|toml)\b")  # of a tool, or the name of one
WORDS = r"[\w.:=-]+(?: [\w.:=-]+)?"
LISTED = re.compile(rf" \(({WORDS}(?:, {WORDS})*)\)")
OPTION = re.compile(r"--?[a-z][\w-]*|[A-Z]+(?:_[A-Z]+)+|num_\w+")
LOCK, TABLE = ".lock.json", "arguments.toml"
ADAPTER = "training.lora."  # settings that only tools which train adapters can say


def changed_words(asked: Asked, settings: Iterable[str]) -> str:
    """What to add or to change in the command or file of a run; empty where its tool has no format
    here, or cannot say the change.
    """
    name, settings = _format(asked), tuple(settings)
    if not name or (not WRITERS[name].adapters and any(ADAPTER in one for one in settings)):
        return ""
    try:
        (before, unsaid), (after, more) = (_written(name, asked.run, one) for one in ((), settings))
    except InputError:
        return ""
    if set(more) - set(unsaid) or before.keys() - after.keys():
        return ""
    form = WRITERS[name]
    new = {key: value for key, value in after.items() if before.get(key) != value}
    options = form.options or _is_options(asked.source)
    return " ".join(_options(new)) if options else "\n".join(map(YAML_KEY.join, new.items()))


def _format(asked: Asked) -> str:
    """The format of a run's tool, by the server or the tool that was read."""
    server = (asked.run.get("inference") or {}).get("engine")
    tool = asked.reading.tool if asked.reading is not None else ""
    for name, form in WRITERS.items():
        if name == server or (not server and tool and _is(name, form, tool)):
            return name
    return ""


def _is_options(source: Any) -> bool:
    """Whether a program was given all of its settings as options, and no file."""
    return isinstance(source, str) and " --" in source and not FILE.search(source)


def _is(name: str, form: OutputFormat, tool: str) -> bool:
    return form.trains and (form.title == tool or name == tool.partition(".")[0])


def _written(
    name: str, run: dict[str, Any], settings: Iterable[str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The keys of a run in a format; what the format cannot say of it, or the program must do."""
    file = read(with_settings(run, settings)).file
    written = write_run(name, file, resolve(file, ()))
    keys = _command_keys if WRITERS[name].serves else _yaml_keys
    return dict(keys(written.text)), (*written.unsaid, *written.notes)


def _yaml_keys(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        key, found, value = line.partition(YAML_KEY)
        if found and line[0] not in "# -":
            yield key, value


def _command_keys(text: str) -> Iterator[tuple[str, str]]:
    option, values = "", list[str]()
    for word in shlex.split(text.replace("\\\n", " "), comments=True):
        if word.startswith("-") and not word[1:2].isdigit():
            yield option, " ".join(values)
            option, values = word, []
        else:
            values.append(word)
    yield option, " ".join(values)


def _options(new: Mapping[str, str]) -> Iterator[str]:
    for key, value in new.items():
        yield f"{key if key.startswith('-') else f'--{key}'} {value}".rstrip()


def in_own_options(sentence: str, tools: Iterable[str]) -> str:
    """The sentence with the options of the first of the tools that has one of them, without any
    where none has; as it is where no tool is known.
    """
    found = sentence
    for tool in tools:
        found = LISTED.sub(partial(_kept, tool), sentence)
        if found != sentence and any(map(OPTION.search, LISTED.findall(found))):
            return found
    return found


def _kept(tool: str, listed: re.Match[str]) -> str:
    """The options of a list that a tool has; what is no list of options stays."""
    words = listed[1].split(", ")
    if not all(OPTION.match(one) for one in words):
        return listed[0]
    own = [one for one in words if _plain(re.split("[ =]", one)[0]) in _names(tool)]
    return f" ({', '.join(own)})" if own else ""


def _plain(option: str) -> str:
    return option.lstrip("-").replace("-", "_").lower()


@cache
def _names(tool: str) -> frozenset[str]:
    """The names of a tool's options, variables and parameters, at any release."""
    folder = os.path.join(FOLDER, tool)
    names: set[str] = set()
    for file in os.listdir(folder) if os.path.isdir(folder) else ():
        if file.endswith(LOCK):
            names |= read_table(os.path.join(folder, file))["arguments"].keys()
    path = os.path.join(folder, TABLE)
    if os.path.isfile(path):
        names |= read_table(path).get("options", {}).get("aliases", {}).keys()
    return frozenset(map(_plain, names))
