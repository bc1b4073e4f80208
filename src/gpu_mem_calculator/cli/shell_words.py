"""Command lines of a run: itself, its explanation, and itself with some changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ..estimates.calculator import Estimate
from ..report.remedy_lines import Commands
from ..runfile.keys.recipes import RECIPES, recipe_settings
from ..runfile.other_names import CHECKPOINTING
from ..runfile.resolve.training_defaults import card_dtype
from .training_options import FLAGS, POLICIES, REPLACED

if TYPE_CHECKING:
    from ..advice.training.remedies import Remedy

ENGINE, STAGE, RANK = "engine.type", "engine.zero_stage", "training.lora.r"
RECOMPUTE = "training.recompute"
OPTIONS: Mapping[str, str] = {
    **FLAGS,
    ENGINE: "--engine",
    STAGE: "--zero",
    "training.precision": "--precision",
}
# Options that the run has in other words after a change of these keys.
STALE = {
    ENGINE: ("--zero", "--offload"),
    STAGE: ("--offload",),
    RANK: ("--lora", "--qlora", "--recipe"),
}


class ShellWords(Struct, frozen=True):
    """The arguments of a run and of its explanation.

    `chooses`: the command chooses what is left out (`quick`), so a key that is removed is left out;
    otherwise it may be in a file, and is set to null.
    """

    run: Sequence[str]
    explain: Sequence[str]
    chooses: bool = False

    def commands(self, estimate: Estimate, remedies: Sequence[Remedy]) -> Commands:
        """The commands of a run, and of the run with each remedy."""
        return Commands(
            self.run, self.explain, [self._changed(estimate, one.settings) for one in remedies]
        )

    def _changed(self, estimate: Estimate, settings: Sequence[str]) -> list[str]:
        """The arguments of the run with some settings."""
        mesh = _chosen_mesh(estimate.result.run) if self.chooses else {}
        changes = mesh | dict(setting.split("=", 1) for setting in settings)
        if changes.get(RECOMPUTE) in POLICIES:  # the option takes them, and replaces both keys
            changes[CHECKPOINTING] = changes.pop(RECOMPUTE)
        if STAGE in changes and "--offload" in self.run:  # it offloads more at another stage
            changes = _offloaded(estimate.result.run) | changes
        words = _without(self.run, changes)
        own = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
        # after names of other tools, --set of the run file's keys
        if any("." not in one.partition("=")[0] for one in own):
            return [*words, *(w for k, v in changes.items() for w in ("--set", f"{k}={v}"))]
        recipe = _recipe(changes, estimate)
        if recipe:
            keys = RECIPES[recipe]
            changes = {k: v for k, v in changes.items() if k not in keys or k == RANK}
        given = (key for key, value in changes.items() if value != "null")  # null replaces nothing
        removed = {old for key in given for old in REPLACED.get(key, ())}
        if recipe or "training.precision" in changes:
            removed.add("training.dtype")
        for key, value in changes.items():
            follows = key in removed or (ENGINE in changes and key.startswith("engine."))
            if key == RANK and recipe:
                words += [f"--{recipe}", value]
            elif value == "null":
                words += [] if self.chooses or follows else ["--set", f"{key}={value}"]
            elif key in OPTIONS:
                words += [OPTIONS[key], value]
            elif key not in removed:
                words += ["--set", f"{key}={value}"]
        return words


def _without(words: Sequence[str], changes: Mapping[str, str]) -> list[str]:
    """The arguments without those that set a key of the changes, or follow from one."""
    keys = {option: key for key, option in OPTIONS.items()}
    stale = {option for key in changes for option in STALE.get(key, ())}
    removed = {*changes, *(old for key in changes for old in REPLACED.get(key, ()))}
    kept: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        key = rest[0].partition("=")[0] if word == "--set" else keys.get(word, "")
        if word in stale or key in removed:
            rest.pop(0)
        elif key:
            kept += [word, rest.pop(0)]
        else:
            kept.append(word)
    return kept


def _recipe(changes: Mapping[str, str], estimate: Estimate) -> str:
    """The recipe that the changes are, with any rank; "" where they are none."""
    if RANK not in changes:
        return ""
    engine = changes.get(ENGINE, estimate.resolved.engine.name)
    for name in () if estimate.serves else ("qlora", "lora"):
        keys = recipe_settings(name, None, engine, card_dtype(estimate.resolved.hardware))
        wanted = {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in keys.items()}
        if all(changes.get(key) == value for key, value in wanted.items() if key != RANK):
            return name
    return ""


def _offloaded(run: Mapping[str, Any]) -> dict[str, str]:
    """What a run offloads, by key."""
    engine = run.get("engine", {})
    return {f"engine.{k}": engine[k] for k in ("offload_optimizer", "offload_param") if k in engine}


def _chosen_mesh(run: Mapping[str, Any]) -> dict[str, str]:
    """The sizes of a Megatron run, which `quick` chooses where none is given."""
    if not str(run.get("engine", {}).get("type", "")).lower().startswith("megatron"):
        return {}
    sizes = {f"parallelism.{key}": value for key, value in run.get("parallelism", {}).items()}
    steps = run.get("training", {}).get("gradient_accumulation_steps")
    if steps is not None:
        sizes["training.gradient_accumulation_steps"] = steps
    return {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in sizes.items()}
