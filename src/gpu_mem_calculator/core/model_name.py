"""What a model's name leads to outside the catalogue, and what is said where it leads nowhere."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import catalog
from ..hub.access import access
from ..hub.bounds import HubError
from ..hub.checkpoint import Checkpoint
from ..hub.names import hub_name, is_address, is_revision, page, shown
from ..hub.sources import named
from .errors import InputError, nearest
from .models import ModelConfig

PASTE = "paste its config.json instead"  # where names are not tried as paths
NUMBERS = "give its sizes as plain numbers (model.num_layers, model.hidden_size, ...)"


def spelled(model: ModelConfig) -> str:
    """A section's name with its revision; a page of the hub becomes the name of its model."""
    name, revision = model.name or "", model.revision
    if is_address(name) and not name.lower().startswith("s3://"):
        try:
            name = page(name) or name
        except HubError as error:
            raise InputError([f"model.name={shown(name)!r}: {error}"]) from None
    if revision is None or name.endswith(f"@{revision}"):
        return name
    said = f"model.revision={revision!r}"
    if not is_revision(revision):
        raise InputError([f"{said} must be a branch, a tag or a commit"])
    if model.config is None and hub_name(f"{name}@{revision}") is not None:
        return f"{name}@{revision}"
    row = catalog.find("index", name) if name else None
    if "@" in name and hub_name(name) is not None:
        fix = f"model.name={name!r} has another; leave one out"
    elif model.config is None and row is not None and row.get("hub_id"):
        fix = f"it is of a model on the hub; name it: {row['hub_id']}"
    else:
        fix = "it is of a model on the hub, and this is none; leave it out"
    raise InputError([f"{said}: {fix}"])


def fetched(name: str, headers: bool) -> Checkpoint:
    """A model that is elsewhere; a preset that is near is named where it is not there."""
    try:
        return named(name, headers=headers)
    except HubError as error:
        if is_address(name):
            said = shown(name).rstrip("/")
            told = "" if said in str(error) else f"={said!r}"
            raise InputError([f"model.name{told} is not read: {error}"]) from None
        instead = "give the path of its config.json" if access().files else PASTE
        hint = "" if "; " in str(error) else f"; {instead}"
        hint = nearest(name, catalog.names("index")) or hint
        raise InputError([f"model.name={name!r} is not a preset, and not read from the hub: "
                          f"{error}{hint}"]) from None  # fmt: skip


def own_code(config: Mapping[str, Any]) -> str:
    """What is said of a family that is not known because its code comes with the model."""
    if not config.get("auto_map"):
        return ""
    trace = "use gpu-mem-calc trace --trust-remote-code with its folder, or " * access().files
    return (f"model_type={config.get('model_type')!r} is not a known family: the repository brings "
            f"code of its own, which is never run here; {trace}{NUMBERS}")  # fmt: skip


def unknown(name: str) -> str:
    """A name that leads nowhere."""
    if not access().files:
        hint = nearest(name, catalog.names("index")) or f": {PASTE}"
        return (
            f"model.name={name!r} is not a preset; this service opens no files or addresses{hint}"
        )
    hint = nearest(name, catalog.names("index")) or "; see gpu-mem-calc presets"
    if os.path.isdir(name):
        return f"model.name={name!r} is a folder without a config.json or a .gguf file"
    if os.path.isfile(name):
        return f"model.name={name!r} is neither a config.json nor a .gguf file"
    scheme, sign, _ = name.partition("://")
    if sign:
        return (f"model.name={shown(name)!r} begins with {scheme}://; https://, http:// and s3:// "
                "are read")  # fmt: skip
    return f"model.name={name!r} is neither a preset nor a file{hint}"


def config_file(name: str) -> Path | None:
    """A config.json on disk."""
    if not name or not access().files:
        return None
    path = Path(name)
    try:
        return path if path.suffix == ".json" and path.is_file() else None
    except (OSError, ValueError):
        return None
