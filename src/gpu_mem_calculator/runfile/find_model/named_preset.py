"""The preset that a name means, and what was assumed of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ... import catalog

FILES = (".gguf", ".json", ".safetensors", ".bin", ".pt")  # endings of files, which name no model


class NamedPreset(Struct, frozen=True):
    """A preset's row, and how the name differs from it.

    - form: the quantization_config that the name says
    - num_parameters: the count that the preset is scaled to
    - own: keys of config.json in which the named model differs from the preset
    - assumed: what was assumed, a sentence each
    """

    row: catalog.Row
    form: dict[str, Any] | None = None
    num_parameters: int | None = None
    assumed: tuple[str, ...] = ()
    own: Mapping[str, Any] = {}


def exact_preset(name: str) -> NamedPreset | None:
    """The preset with this name, hub id or alias."""
    row = catalog.find("index", name) if name else None
    if row is None:
        return None
    if name == row["name"]:
        return NamedPreset(row)
    from ...catalog.siblings import own_config

    return NamedPreset(row, assumed=_shared_architecture(name, row), own=own_config(name))


def variant_preset(name: str) -> NamedPreset | None:
    """The preset of which a name is another spelling, a tuning or a weight format."""
    from ...catalog.siblings import own_config
    from ...catalog.variants import variant

    found = variant(name) if name else None
    if found is None:
        return None
    row, form, words = found
    said: tuple[str, ...]
    if words:
        said = (f"{name} is {row['title']} in {words}, by its name",)
    else:
        copied = (f"{name} is {row['title']}, by its name",) if "/" in name else ()
        said = _shared_architecture(name, row) or copied
    return NamedPreset(row, form, assumed=said, own=own_config(name))


def path_preset(name: str) -> NamedPreset | None:
    """The preset that the last folder of a path names: of a path that this machine does not have.

    Where a folder is the hub's cache (`models--owner--name/snapshots/...`), that names it.
    """
    from ...catalog.hub.names import is_address

    parts = [part for part in name.replace("\\", "/").split("/") if part]
    path = name.startswith(("/", "~", "$", ".")) or len(parts) > 2 or name[1:3] == ":\\"
    path = path or name.endswith("/")  # owner/model/ is a folder, too
    if not path or not parts or is_address(name) or parts[-1].endswith(FILES):
        return None
    cached = (part for part in parts if part.startswith("models--"))
    folder = next(cached, parts[-1]).removeprefix("models--").rpartition("--")[2]
    found = exact_preset(folder) or variant_preset(folder)
    if found is None:
        return None
    said = f"{name} is not on this machine: taken as the model that its folder names, {folder}"
    return replace(found, assumed=(said, *found.assumed))


def meant_preset(text: str) -> NamedPreset | None:
    """The preset that a size alone, or a family alone, means."""
    from ...catalog.model_names import meaning
    from .model_size import sized_model

    sized = sized_model(text)
    if sized is not None:
        row = catalog.find("index", sized.name)
        assert row is not None
        return NamedPreset(row, None, sized.num_parameters, (sized.note.rstrip("."),))
    family = meaning(text)
    if family is None:
        return None
    return NamedPreset(family, assumed=(f"{text!r} interpreted as {family['title']}",))


def _shared_architecture(name: str, row: catalog.Row) -> tuple[str, ...]:
    """What is assumed where a name is that of another model with the preset's architecture, or of a
    tuning whose own config.json is not known.
    """
    from ...catalog.model_names import is_own
    from ...catalog.siblings import is_known

    if not is_own(name, row):
        return (f"{name} has the architecture of {row['title']}",)
    return () if is_known(name, row) else (f"{name} taken as {row['title']}",)
