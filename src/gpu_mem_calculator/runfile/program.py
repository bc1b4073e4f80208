"""A program in its own words, and what it means in the keys of a run file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field

from ..ledger.quoting import quoted
from ..run.limits import Limit

Section = dict[str, Any]
TRANSLATED = ("model", "training", "parallelism", "engine")  # sections of a run file


class Program(Struct, kw_only=True, omit_defaults=True):
    """The `program` section of a run file. Every name is the tool's own.

    - `tool`: transformers.Trainer, trl.SFTTrainer, lightning ...; `version`: its release
    - `args`: its arguments; what is left out has the tool's default
    - `load`: arguments of from_pretrained; `peft`: of LoraConfig; `quantization`: of
      BitsAndBytesConfig
    - `data`: what a batch holds: `seq_len`, `prompt`, `lengths`
    - `accelerate`, `deepspeed`, `fsdp_config`: configurations of the launch
    """

    tool: str
    version: str | None = None
    args: Section = field(default_factory=dict)
    load: Section = field(default_factory=dict)
    peft: Section | None = None
    quantization: Section | None = None
    data: Section = field(default_factory=dict)
    accelerate: Section | None = None
    deepspeed: Section | None = None
    fsdp_config: Section | None = None


class ModelFacts(Struct, frozen=True, kw_only=True):
    """What a translation needs to know of the model; None where it is not known."""

    family: str = ""
    hidden_size: int | None = None
    tied: bool = False
    stored_dtype: str | None = None  # of the checkpoint, by its config.json
    shape: Section = field(default_factory=dict)  # by keys of the model section


class Setup(Struct, frozen=True, kw_only=True):
    """What a translation needs to know of the rest of the run file.

    `releases` are the user's, by package; none of a package that is the release that was read.
    """

    num_gpus: int = 1
    releases: Mapping[str, str] = {}
    has_model: bool = True
    model: Callable[[], ModelFacts] = ModelFacts


class Translation(Struct, kw_only=True):
    """A program as keys of a run file.

    `assumed`, `warnings` and `problems` have one sentence for each; `limits` what is not modelled;
    `releases` those whose defaults it has, by package.
    """

    model: Section = field(default_factory=dict)
    training: Section = field(default_factory=dict)
    parallelism: Section = field(default_factory=dict)
    engine: Section = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    releases: dict[str, str] = field(default_factory=dict)
    limits: list[Limit] = field(default_factory=list)

    @property
    def meant(self) -> tuple[str, ...]:
        """Each key as `section.key=value`."""
        return tuple(
            f"{name}.{key}={quoted(value)}"
            for name in TRANSLATED
            for key, value in getattr(self, name).items()
        )
