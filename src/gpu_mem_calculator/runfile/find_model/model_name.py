"""Finds a model by its name outside the catalogue, and the messages where it is not found."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ... import catalog
from ...catalog.hub.access import access
from ...catalog.hub.bounds import HubError
from ...catalog.hub.names import hub_name, is_address, is_revision, page, printable_name
from ..config import ModelConfig
from ..text.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from ...catalog.hub.checkpoint import Checkpoint

PASTE = "paste its config.json instead"  # for services that open no files
NUMBERS = "give its sizes as plain numbers (model.num_layers, model.hidden_size, ...)"


def name_with_revision(model: ModelConfig) -> str:
    """The name of a section with its revision; a hub page's address becomes the model's name."""
    name, revision = model.name or "", model.revision
    if is_address(name) and not name.lower().startswith("s3://"):
        try:
            name = page(name) or name
        except HubError as error:
            raise InputError(f"model.name={printable_name(name)!r}: {error}") from None
    if revision is None or name.endswith(f"@{revision}"):
        return name
    sentence = f"model.revision={revision!r}"
    if not is_revision(revision):
        raise InputError(f"{sentence} must be a branch, a tag or a commit")
    if model.config is None and hub_name(f"{name}@{revision}") is not None:
        return f"{name}@{revision}"
    row = catalog.find("index", name) if name else None
    if "@" in name and hub_name(name) is not None:
        fix = f"model.name={name!r} has another; leave one out"
    elif model.config is None and row is not None and row.get("hub_id"):
        fix = f"it is of a model on the hub; name it: {row['hub_id']}"
    else:
        fix = "it is of a model on the hub, and this is none; leave it out"
    raise InputError(f"{sentence}: {fix}")


def fetch_checkpoint(name: str, headers: bool) -> Checkpoint:
    """The checkpoint of a name or address; the error where there is none names a similar preset."""
    from ...catalog.hub.sources import named

    try:
        return named(name, headers=headers)
    except HubError as error:
        if is_address(name):
            address = printable_name(name).rstrip("/")
            quoted = "" if address in str(error) else f"={address!r}"
            raise InputError(f"model.name{quoted} is not read: {error}") from None
        instead = "give the path of its config.json" if access().files else PASTE
        hint = "" if "; " in str(error) else f"; {instead}"
        hint = _similar(name) or hint
        raise InputError(
            f"model.name={name!r} is not a preset, and not read from the hub: {error}{hint}"
        ) from None


def unknown_family_message(config: Mapping[str, Any], problem: str) -> str:
    """The message for a config whose family is not known: what works instead."""
    if "did you mean" in problem:
        return problem
    if config.get("auto_map"):
        trace = "use gpu-mem-calc trace --trust-remote-code with its folder, or " * access().files
        own = "the repository brings code of its own, which is never run here"
        return f"{problem}: {own}; {trace}{NUMBERS}"
    function = ", or run its own code once with calculate --function" * access().files
    return f"{problem}; {NUMBERS}{function}"


def is_here(name: str) -> bool:
    """Whether a path is on this machine, where files may be opened."""
    path = os.path.expanduser(name)
    return access().opens(path) and os.path.exists(path)


def unknown_name_message(name: str) -> str:
    """The message for a name that is neither a preset nor a file."""
    if not access().files:
        hint = _similar(name) or f": {PASTE}"
        return (
            f"model.name={name!r} is not a preset; this service opens no files or addresses{hint}"
        )
    if os.path.isdir(name):
        return f"model.name={name!r} is a folder without a config.json or a .gguf file"
    if os.path.isfile(name):
        return f"model.name={name!r} is neither a config.json nor a .gguf file"
    scheme, sign, _ = name.partition("://")
    if sign:
        return (
            f"model.name={printable_name(name)!r} begins with {scheme}://; "
            "https://, http:// and s3:// are read"
        )
    hint = _similar(name) or "; see gpu-mem-calc presets, or give its name on the hub, owner/model"
    fix = "say which model it is, with --set model.name=owner/model"
    if name.startswith("$"):
        return f"model.name={name!r} is {_of_shell(name)} {fix}"
    if name.startswith(("/", "~", ".")):
        return f"model.name={name!r} is not on this machine, and no preset has its name; {fix}"
    return f"model.name={name!r} is neither a preset nor a file{hint}"


def _of_shell(name: str) -> str:
    """What a shell script has in the place of a model's name."""
    if name.startswith("$("):
        return "what another command prints, and none is started;"
    plain = name.strip("${}")
    if plain.isdigit():
        return "a word after the script's name that is not given;"
    return f"a variable that nothing sets; write {plain}=owner/model in front of it, or"


def _similar(name: str) -> str:
    """`; did you mean 'x'?` where a preset of the same family and size has a similar name."""
    from ...catalog.model_names import similar

    found = similar(name)
    return f"; did you mean {found!r}?" if found else ""


def disk_stamp(name: str) -> list[tuple[str, int, int]] | None:
    """The names, times and sizes of a file, or of those in a folder; None where the name is
    neither, or files are not opened.
    """
    if not name or not access().opens(name):
        return None
    try:
        if os.path.isfile(name):
            facts = os.stat(name)
            return [(os.path.abspath(name), facts.st_mtime_ns, facts.st_size)]
        with os.scandir(os.path.abspath(name)) as entries:
            found = [(one.path, one.stat().st_mtime_ns, one.stat().st_size) for one in entries]
        return sorted(found)
    except (OSError, ValueError):
        return None


def config_file(name: str) -> Path | None:
    """The path of a config.json on disk; None where the name is none, or files are not opened."""
    if not name or not access().opens(name):
        return None
    from pathlib import Path

    path = Path(name)
    try:
        return path if path.suffix == ".json" and path.is_file() else None
    except (OSError, ValueError):
        return None
