"""A container of a manifest: its words, variables and GPUs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from ...core.errors import InputError, quoted
from ..launchers.container import entrypoint

# Resources that are GPUs, by the names that device plugins give them.
GPU = re.compile(r"(nvidia|amd|intel)\.com/(gpu.*|mig-.*)")
REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_]\w*)\)")  # of Kubernetes
SHELLS = ("sh", "bash", "ash", "dash", "zsh")
SEPARATORS = frozenset({";", "&&", "||", "|", "&", "\n", "(", ")", "{", "}"})
MOST_CHARACTERS = 2**18  # of a script


class Container(Struct, frozen=True, kw_only=True):
    """What a container starts.

    - `name`: of the object and of the container, for sentences
    - `commands`: the commands in its words, each as words; a script may have several
    - `num_gpus`: of this container; None where the manifest says nothing of GPUs
    - `copies`: containers that belong to the same run, each on a node of its own
    """

    name: str
    image: str = ""
    commands: tuple[tuple[str, ...], ...] = ()
    environment: Mapping[str, str] = {}
    num_gpus: int | None = None
    copies: int = 1


def text_list(value: Any, where: str) -> list[str]:
    """A list of words; a text is split as a shell splits it."""
    if value is None:
        return []
    if isinstance(value, str):
        return split_words(value, where)
    if isinstance(value, Sequence) and not any(isinstance(one, list | Mapping) for one in value):
        return [_word(one) for one in value]
    raise InputError(f"{where}={quoted(value)} must be a list of words")


def split_words(text: str, where: str) -> list[str]:
    """The words of a text in a shell's rules for quotes."""
    try:
        return shlex.split(text[:MOST_CHARACTERS])
    except ValueError as error:
        raise InputError(f"{where}: {str(error).lower()}; close the quotes") from None


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def variables(entries: Any, where: str) -> dict[str, str]:
    """The variables of `env`: names and values, a mapping, or NAME=VALUE; secrets are left out."""
    if entries is None:
        return {}
    if isinstance(entries, Mapping):
        return {str(name): _word(value) for name, value in entries.items() if value is not None}
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise InputError(f"{where}={quoted(entries)} must be a list of names and values")
    found: dict[str, str] = {}
    for entry in entries:
        if isinstance(entry, Mapping) and entry.get("value") is not None:
            found[str(entry.get("name"))] = _word(entry["value"])
        elif isinstance(entry, str) and "=" in entry:
            name, _, value = entry.partition("=")
            found[name] = value
    return found


def referenced(word: str, environment: Mapping[str, str]) -> str:
    """A word with `$(NAME)` replaced by the variable, as Kubernetes does."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else environment.get(match[1], match[0])

    return REFERENCE.sub(value, word)


def gpus_of(resources: Any, where: str) -> int | None:
    """The GPUs of a container's limits or requests."""
    if not isinstance(resources, Mapping):
        return None
    for part in ("limits", "requests"):
        section = resources.get(part)
        if not isinstance(section, Mapping):
            continue
        counts = [value for name, value in section.items() if GPU.fullmatch(str(name))]
        if counts:
            return sum(whole_number(value, f"{where}.resources.{part}") for value in counts)
    return None


def whole_number(value: Any, where: str) -> int:
    """A count, as a number or as text."""
    if isinstance(value, bool) or not str(value).strip('"').isdecimal() or len(str(value)) > 6:
        raise InputError(f"{where}: {quoted(value)} must be a whole number of GPUs")
    return int(str(value).strip('"'))


def container_commands(
    image: str, command: Sequence[str], args: Sequence[str], where: str
) -> tuple[tuple[str, ...], ...]:
    """The commands that a container runs: those of a shell's script, or the words themselves."""
    words = [*command, *args] if command else [*entrypoint(image), *args]
    front = list(entrypoint(image))
    if not command and front and tuple(args[: len(front)]) == tuple(front):
        words = list(args)
    script = _script(words)
    if script is None:
        return (tuple(words),) if words else ()
    return tuple(tuple(one) for one in script_commands(script, where))


def _script(words: Sequence[str]) -> str | None:
    """The text behind `bash -c`; None where no shell is started."""
    if not words or words[0].rpartition("/")[2] not in SHELLS:
        return None
    for index, word in enumerate(words[1:], start=1):
        if word.startswith("-") and not word.startswith("--") and word.endswith("c"):
            return words[index + 1] if index + 1 < len(words) else ""
        if not word.startswith("-"):
            return None
    return None


def script_commands(text: str, where: str) -> Iterator[list[str]]:
    """The simple commands of a script, in order; variables in it are not followed."""
    joined = re.sub(r"\\\r?\n", " ", text[:MOST_CHARACTERS])
    for line in joined.splitlines():
        splitter = shlex.shlex(line, posix=True, punctuation_chars=";&|()")
        splitter.whitespace_split = True
        words: list[str] = []
        try:
            for word in splitter:
                if set(word) <= set(";&|()"):
                    if words:
                        yield words
                    words = []
                else:
                    words.append(word)
        except ValueError as error:
            raise InputError(f"{where}: {str(error).lower()}; close the quotes") from None
        if words:
            yield words
