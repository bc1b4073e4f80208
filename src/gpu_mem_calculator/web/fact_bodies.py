"""The shapes of facts, for the OpenAPI document: models, cards, the form."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from ..runfile.keys.fields import RunFileField


class Preset(Struct, frozen=True):
    """A model that has a name. `spellings`: the words of every text that means it."""

    display_name: str
    description: str
    num_parameters: int
    family: str
    hub_id: str | None
    spellings: list[str]


class CardBody(Struct, frozen=True, kw_only=True):
    """A GPU. Bandwidth is in 10⁹ bytes a second, `tflops` by number format."""

    name: str
    title: str
    vendor: str
    kind: str
    architecture: str
    memory_gb: float
    memory_bytes: int
    memory_bytes_known: bool
    memory_bytes_reading: str
    memory_bytes_source: str
    bandwidth_gb_per_s: float
    source: str
    checked: str
    tflops: dict[str, float] = {}
    link: str = ""
    compute_capability: str = ""
    multiprocessors: int = 0
    driver_total_bytes: int = 0
    aliases: list[str] = []


class Cards(Struct, frozen=True):
    """Every card."""

    gpus: list[CardBody]


class FormSection(Struct, frozen=True):
    """A section of the run file."""

    name: str
    title: str
    of: Literal["training", "serving", "both"]


class FormEngine(Struct, frozen=True):
    """An engine, its other spellings, and the axes that it cuts along."""

    name: str
    title: str
    kind: Literal["training", "serving"]
    axes: list[str]
    aliases: list[str]


class RecipeChoice(Struct, frozen=True):
    """The engine that a recipe runs on where another is chosen, its settings there, in words."""

    engine: str
    settings: dict[str, Any]
    meaning: str


class FormRecipe(Struct, frozen=True):
    """A recipe: what is trained, and by engine the settings that people usually choose for it."""

    name: str
    title: str
    engines: dict[str, RecipeChoice]


class FormMethod(Struct, frozen=True):
    """A method of training, with settings as a recipe has them; `marks` are keys by which a run has
    it, `sequences` those of a micro-batch for each example.
    """

    name: str
    title: str
    marks: list[str]
    sequences: int
    engines: dict[str, RecipeChoice]


class Form(Struct, frozen=True):
    """What a form needs but the cards and the presets."""

    sections: list[FormSection]
    fields: list[RunFileField]
    engines: list[FormEngine]
    version: str
    recipes: list[FormRecipe]
    methods: list[FormMethod]


FACTS = [kind for kind in globals().values() if getattr(kind, "__module__", "") == __name__]
