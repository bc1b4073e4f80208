"""The preset that a name means, and what was assumed of it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from .. import catalog
from .model_size import sized_model


class NamedPreset(Struct, frozen=True):
    """A preset's row, and how the name differs from it.

    - form: the quantization_config that the name says
    - num_parameters: the count that the preset is scaled to
    - assumed: what was assumed, a sentence each
    """

    row: catalog.Row
    form: dict[str, Any] | None = None
    num_parameters: int | None = None
    assumed: tuple[str, ...] = ()


def exact_preset(name: str) -> NamedPreset | None:
    """The preset with this name, hub id or alias."""
    row = catalog.find("index", name) if name else None
    return None if row is None else NamedPreset(row, assumed=_shared_architecture(name, row))


def variant_preset(name: str) -> NamedPreset | None:
    """The preset of which a name is another spelling, a tuning or a weight format."""
    from ..catalog.variants import variant

    found = variant(name) if name else None
    if found is None:
        return None
    row, form, words = found
    if words:
        return NamedPreset(
            row, form, assumed=(f"{name} is {row['title']} in {words}, by its name",)
        )
    shared = _shared_architecture(name, row)
    copied = (f"{name} is {row['title']}, by its name",) if "/" in name else ()
    return NamedPreset(row, assumed=shared or copied)


def meant_preset(text: str) -> NamedPreset | None:
    """The preset that a size alone, or a family alone, means."""
    from ..catalog.model_names import meaning

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
    """What is assumed where a name is that of another model with the preset's architecture."""
    from ..catalog.model_names import is_own

    return () if is_own(name, row) else (f"{name} has the architecture of {row['title']}",)
