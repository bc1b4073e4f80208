"""Who printed a text: its tools, and whether they train or serve; a remedy is for some of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from ...catalog.kept import read_table
from ...estimates.calculator import Estimate
from ...tools.logs.frames import Traceback
from ...tools.logs.read import Log
from ...tools.read import Asked
from .places import BACKWARD, OPTIMIZER_STEP

TRAINING, SERVING = "training", "serving"
# What people say of a program whose tool they do not name.
KIND_WORDS = {
    TRAINING: re.compile(
        r"(?i)\b(train(s|ed|ing|er)?|(pre|post)-?train\w*|fine-?tun\w*|SFT|DPO|GRPO|Q?LoRA|PEFT"
        r"|optimizer|gradients?)\b|loss\.backward"
    ),
    SERVING: re.compile(r"(?i)\b(serv(e|es|ed|ing)|servers?|api.server|inference)\b"),
}
CUDA_VARIABLE, HIP_VARIABLE = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"
HIP = re.compile(r"HIP out of memory|PYTORCH_HIP_ALLOC_CONF")
BAR = "step"  # a progress bar, which every program can draw


@cache
def program_rows() -> Mapping[str, Mapping[str, Any]]:
    """The rows of programs.toml."""
    table = read_table(os.path.join(os.path.dirname(__file__), "programs.toml"))
    return {name: {**row, "form": re.compile(row["words"], re.I)} for name, row in table.items()}


def programs(
    asked: Asked | None, log: Log, stack: Traceback | None, phase: str, text: str
) -> tuple[str, ...]:
    """The tools of a text, then the kind of what they do, which is left out where both are there.

    The run says it, else who printed lines and stack, else the words of the text. The other tools
    of that kind that the text names are among them.
    """
    frames = " ".join(one.file for one in stack.frames) if stack is not None else ""
    printed = {one.tool for one in log.lines if one.what != BAR} & program_rows().keys()
    named = (_of_run(asked), [*printed, *_named(frames)], list(_named(text)))
    kinds = {_kind(one) for one in named[1]}
    if asked is not None:
        kinds = {SERVING if asked.run.get("inference") else TRAINING}
    elif not kinds and phase in (BACKWARD, OPTIMIZER_STEP):
        kinds = {TRAINING}
    elif not kinds:
        words = {kind for kind, form in KIND_WORDS.items() if form.search(text)}
        kinds = {_kind(one) for one in named[2]} | words
    found = {one for each in named for one in each if _kind(one) in kinds}
    found -= {str(program_rows()[one].get("within")) for one in found}
    ordered = [one for one in program_rows() if one in found]
    return (*ordered, *(kinds if len(kinds) == 1 else ()))


def _kind(program: str) -> str:
    return str(program_rows()[program]["kind"])


def _of_run(asked: Asked | None) -> list[str]:
    """The tools that a run names."""
    if asked is None:
        return []
    engines = ((asked.run.get(one) or {}) for one in ("inference", "engine"))
    words = [*(one.get("engine") or one.get("type") or "" for one in engines)]
    words += [asked.reading.tool, asked.reading.name] if asked.reading is not None else []
    return list(_named(" ".join(map(str, words))))


def _named(text: str) -> Iterator[str]:
    return (name for name, row in program_rows().items() if row["form"].search(text))


def can_have(row: Mapping[str, Any], programs: Iterable[str]) -> bool:
    """Whether one of the programs can die of a cause; of those that are not known, each can."""
    without = set(row.get("without", ()))
    kinds, tools = (set(programs) & {TRAINING, SERVING}), set(programs) & program_rows().keys()
    return not kinds & without and not (tools and tools <= without)


def for_programs(row: Mapping[str, Any], programs: Iterable[str]) -> list[str]:
    """The remedies of a cause that the first of the programs can follow for which it has some."""
    own: Mapping[str, list[str]] = row.get("for", {})
    found: list[str] = next((own[one] for one in programs if one in own), row["remedies"])
    return found


def is_done(remedy: str, estimate: Estimate | None) -> bool:
    """Whether a run has a remedy already."""
    if estimate is None or estimate.serves:
        return False
    run = estimate.resolved.run
    done = {
        "Recompute activations": run.recompute not in ("", "none"),
        "Liger": bool(run.liger),
        "Train an adapter": run.adapter is not None,
        "or train an adapter": run.adapter is not None,
        "Make the micro-batch smaller": int(run.batch) == 1,
        "expandable_segments:True": estimate.resolved.allocator.expandable_segments,
    }
    return any(value for words, value in done.items() if words in remedy)


def options_of(programs: Iterable[str]) -> list[str]:
    """The tools whose options the programs take."""
    names = [one for one in programs if one in program_rows()]
    return [
        *names,
        *(row["options"] for row in map(program_rows().get, names) if row and "options" in row),
    ]


def with_allocator(remedy: str, text: str) -> str:
    """A remedy with the variable of torch's allocator that the text's own card reads."""
    return remedy.replace(CUDA_VARIABLE, HIP_VARIABLE) if HIP.search(text) else remedy
