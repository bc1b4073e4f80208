"""What was read from a command or a file of another tool."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field, to_builtins

from ...run.limits import Could as Could
from ...run.limits import Limit as Limit
from .card import NamedCard

Section = dict[str, Any]
Effect = Literal["memory", "free", "refused"]
# What is read that no other tool's program starts.
RUN_FILE, CONFIG, MODEL, DEEPSPEED = "run file", "config.json", "model", "DeepSpeed"
OWN = (RUN_FILE, CONFIG, MODEL)


class Reading(Struct, kw_only=True):
    """A command or a file of another tool as a run file.

    - `tool`: its title, such as `vllm serve`; `version`: the release whose source was read
    - `run`: sections of a run file: `model`, then `program`, `inference`, or `training` and
      `engine`; `hardware` as far as the command says it
    - `keys`: the effect of every key or option that the user wrote
    - `assumed`: a sentence for each default of the tool that changes memory
    - `limits`: what is not modelled; the estimate is made without it
    - `problems`: a sentence for each thing that is wrong, such as a key that nobody knows
    - `card`, `name`, `slots`, `devices`: those of the command
    - `script`: the Python script whose lines were followed, by its name; else empty
    - `usual`: whether options have the usual meaning of their names, because the script is not here
    - `unsaid`: a sentence on words that a shell script takes after its name and that are not given
    """

    tool: str
    version: str = ""
    run: Section = field(default_factory=dict)
    keys: dict[str, Effect] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)
    limits: list[Limit] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    card: NamedCard | None = None
    name: str = ""
    slots: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    script: str = ""
    usual: bool = False
    unsaid: str = ""

    def limit(self, key: str, why: str, could: Could = "either", **more: Any) -> None:
        """Name what is not modelled; `more`: the other fields of the limit."""
        self.limits.append(Limit(key=key, why=why, could=could, **more))

    @property
    def is_own(self) -> bool:
        """Whether it is a run file, or a model alone, and no other tool's."""
        return self.tool in OWN

    @property
    def is_deepspeed(self) -> bool:
        """Whether it is DeepSpeed's JSON, which names no model."""
        return self.tool == DEEPSPEED

    @property
    def written(self) -> frozenset[str]:
        """The names of arguments that the user wrote, as far as they are those of the program."""
        return frozenset(() if self.usual else (key.lstrip("-") for key in self.keys))

    @property
    def assumed_at_a_release(self) -> list[str]:
        """What was assumed, without the defaults of the release that was read."""
        own = f"{self.version}'s defaults: "
        return [one for one in self.assumed if own not in one]

    @property
    def run_file(self) -> Section:
        """The run file, with the limits beside its sections: they stay with it."""
        limits = [to_builtins(limit) for limit in self.limits]
        return {**self.run, "limits": limits} if limits else dict(self.run)
