"""The phases of a job in order, and the names with which this package's jobs mark their ends."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from ...runfile.resolve.resolved_run import ResolvedRun

INFERENCE = ("load", "prefill", "generate")
NAME = re.compile(r"s(\d+)(?:\.[am](\d+))?\.(fwd|bwd|fwdbwd|sync|opt|eval|step)")


class StepPhase(Struct, frozen=True):
    """A phase of a step.

    - step: counted from 0
    - micro_batch: counted from 0; None for all micro-batches of the step
    - kind: forward, backward, ..., as `NAME` has them
    """

    step: int
    micro_batch: int | None
    kind: str


def parse(name: str) -> StepPhase | None:
    """The phase that a name such as `s1.a0.bwd` means; None for a phase of start-up."""
    match = NAME.fullmatch(name)
    if match is None:
        return None
    return StepPhase(int(match[1]), None if match[2] is None else int(match[2]), match[3])


def in_step(phase: str) -> bool:
    """Whether a phase belongs to a training step: `s0.a0.fwd`, `s2.opt`."""
    return re.match(r"s\d+(\.|$)", phase) is not None


class JobPhases(Struct, frozen=True, kw_only=True):
    """Names of phases: of start-up, of each micro-batch, and of the end of a step."""

    startup: tuple[str, ...] = ("model",)
    micro_batch: tuple[str, ...] = ("fwd", "bwd")
    letter: str = "a"  # in front of a micro-batch's number
    step: tuple[str, ...] = ("opt",)


TORCH = JobPhases()
EVALUATED = JobPhases(step=("opt", "eval"))
MEGATRON = ("model", "ddp", "optimizer")
DEEPSPEED = JobPhases(startup=("model", "init"), micro_batch=("fwd", "bwd", "opt"), step=())
STAGE = JobPhases(startup=MEGATRON, letter="m", step=("sync", "opt"))
PIPELINE = JobPhases(startup=MEGATRON, micro_batch=(), step=("fwdbwd", "sync", "opt"))
PROGRAM = JobPhases(micro_batch=(), step=("step",))


def training_phases(resolved: ResolvedRun, steps: int, *, program: bool = False) -> tuple[str, ...]:
    """The phases of a training run with this many steps; program: of a tool's own trainer."""
    run, phases = resolved.run, PROGRAM if program else _phases(resolved)
    names = list(phases.startup)
    for step in (f"s{number}" for number in range(steps)):
        for micro in (f"{phases.letter}{number}" for number in range(int(run.micro_batches))):
            names += [f"{step}.{micro}.{kind}" for kind in phases.micro_batch]
        names += [f"{step}.{kind}" for kind in phases.step]
    return tuple(names)


def _phases(resolved: ResolvedRun) -> JobPhases:
    if resolved.run.evaluation is not None:
        return EVALUATED
    if resolved.engine.name == "deepspeed":
        return DEEPSPEED
    if resolved.engine.name != "megatron_lm":
        return TORCH
    return STAGE if int(resolved.run.mesh.pp) == 1 else PIPELINE


def inference_phases(new_tokens: int) -> tuple[str, ...]:
    """The phases of an inference run: the prompt alone, or `generate`."""
    load, prefill, generate = INFERENCE
    return (load, generate if new_tokens else prefill)


def phase_after(ended: Sequence[str], phases: Sequence[str]) -> str:
    """The phase at work once these have ended; empty where that is not known."""
    if not ended:
        return phases[0] if phases else ""
    following = dict(pairwise(phases))
    return following.get(ended[-1], "")
