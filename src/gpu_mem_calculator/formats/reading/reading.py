"""What was read from a command or a file of another tool."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

Section = dict[str, Any]
Effect = Literal["memory", "free", "refused"]
Could = Literal["less", "more", "either"]


class Limit(Struct, frozen=True, kw_only=True):
    """Something that is not modelled.

    - `key`: as the user wrote it, with its value: `activation_offloading=true`
    - `why`: the end of a sentence: what it does, and how much it could matter
    - `could`: with it the run takes `less` than estimated without it, `more`, or `either`
    - `most_bytes`: how much more at most; None where that is not known
    """

    key: str
    why: str
    could: Could = "either"
    most_bytes: int | None = None

    def __str__(self) -> str:
        return f"{self.key}: {self.why}"


class Reading(Struct, kw_only=True):
    """A command or a file of another tool as a run file.

    - `tool`: its title, such as `vllm serve`; `version`: the release whose source was read
    - `run`: sections of a run file: `model`, then `program`, `inference`, or `training` and
      `engine`; `hardware` as far as the command says it
    - `keys`: the effect of every key or option that the user wrote
    - `assumed`: a sentence for each default of the tool that changes memory
    - `limits`: what is not modelled; the estimate is made without it
    - `problems`: a sentence for each thing that is wrong, such as a key that nobody knows
    """

    tool: str
    version: str = ""
    run: Section = field(default_factory=dict)
    keys: dict[str, Effect] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)
    limits: list[Limit] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
