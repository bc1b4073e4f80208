"""Commands that start what a manifest describes: kubectl apply, docker compose up."""

from __future__ import annotations

from collections.abc import Sequence

from ...runfile.text.errors import InputError
from ..reading.named_files import NamedFiles

KUBERNETES = ("kubectl", "oc", "k3s")
APPLIED = ("apply", "create", "replace")
COMPOSED = ("up", "create", "run", "start")
FILE_OPTIONS = ("-f", "--file", "--filename")
# Names that compose looks for, in this order (Compose Specification, "Compose file").
DEFAULT_FILES = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")


def manifest_files(words: Sequence[str], files: NamedFiles) -> list[str]:
    """The files that a command applies; none where it is another command."""
    name, rest = words[0].rpartition("/")[2], list(words[1:])
    if name in ("docker", "podman") and rest[:1] == ["compose"]:
        name, rest = f"{name}-compose", rest[1:]
    if name in ("docker-compose", "podman-compose"):
        return _composed(rest, files) if set(COMPOSED) & set(rest) else []
    if name not in KUBERNETES or not set(APPLIED) & set(rest):
        return []
    return _named(rest) or _refuse("kubectl names no file; add -f FILE")


def _composed(words: Sequence[str], files: NamedFiles) -> list[str]:
    found = next((one for one in DEFAULT_FILES if files.exists(one)), None)
    names = _named(words) or ([found] if found else [])
    if not names:
        files.want(DEFAULT_FILES[0])
    return names or _refuse("docker compose finds no compose.yaml here; add -f FILE")


def _named(words: Sequence[str]) -> list[str]:
    """The values of the options that name files."""
    found = []
    for index, word in enumerate(words):
        option, sign, value = word.partition("=")
        if option in FILE_OPTIONS:
            value = value if sign else "".join(words[index + 1 : index + 2])
            found += [one for one in value.split(",") if one]
    return found


def _refuse(sentence: str) -> list[str]:
    raise InputError(sentence)
