"""What a plan's search and its seconds leave out, a sentence for each, where it concerns a plan."""

from __future__ import annotations

from collections.abc import Iterator

from ....timing.training.optimizer import timed_as
from ....training.engines import engine_row
from ....training.engines.megatron_lm.options import ENGINE as TRANSFORMER_ENGINE
from ..answers.plans import Plan
from .axes import KEYS, PP, axis_values
from .structures import Structure

LAYOUT = "engine.pipeline_model_parallel_layout"
OVERLAPPED_TP = "engine.tp_comm_overlap"
BF16_SINCE = 8  # compute capability 8.0, Ampere; Transformer Engine is documented from there, too
MOST_STAGES = 16  # numbers of stages that are named


def plan_limits(plans: list[Plan], every: list[Structure], left_out: list[str]) -> list[str]:
    """The sentences for the plans of some structures; `left_out`: why set-ups were."""
    if not every:
        return []
    shown = [plan.settings["engine.type"] for plan in plans[:1] if "engine.type" in plan.settings]
    found = [*_stages(every), *_overlap(every), *_card(every), *_optimizers(every)]
    found += [limit for name in shown if (limit := engine_row(name).plan_limit)]
    if left_out:
        found.append(f"{len(left_out):,} set-ups were left out: {left_out[0]}")
    return found


def tie(plans: list[Plan]) -> Iterator[str]:
    """A sentence where others are within the interval of the first plan."""
    if not plans:
        return
    most = plans[0].step_seconds.high
    ranks = [plan.rank for plan in plans[1:] if plan.step_seconds.estimate <= most]
    if ranks:
        last = max(rank for rank in ranks if ranks.index(rank) == rank - 2)
        named = f"plans 2 to {last}" if last > 2 else "plan 2"
        yield f"Within the interval of plan 1: {named}; which of them is fastest is not certain."


def _stages(every: list[Structure]) -> Iterator[str]:
    """Numbers of stages that do not share the layers of a model equally."""
    equal = [s for s in every if engine_row(s.engine).equal_stages]
    one = next((s for s in equal if KEYS[PP] not in s.settings), None)
    if one is None or any(LAYOUT in s.settings for s in every):
        return
    hardware, arch = one.resolved.hardware, one.resolved.run.arch
    layers = len(arch.layers)
    values = axis_values(
        arch,
        num_gpus=hardware.num_gpus,
        gpus_per_node=hardware.gpus_per_node,
        seq=int(one.resolved.run.seq),
        global_batch=1,
    )
    missing = [n for n in values[PP] if n <= MOST_STAGES and layers % n and (layers + 2) % n]
    if missing:
        counts = ", ".join(map(str, missing))
        what = f"{layers} layers do not divide into {counts} pipeline stages"
        yield f"{what}, and stages of unequal length are not searched; give {LAYOUT}"


def _overlap(every: list[Structure]) -> Iterator[str]:
    """Overlapped collectives of tensor parallelism, which no set-up has unless it is asked for."""
    has = (s for s in every if "tp_comm_overlap" in s.resolved.run.options)
    sharded = [s for s in has if any(rank[0] > 1 for rank in s.ranks)]
    if sharded and not any(s.resolved.run.options.get("tp_comm_overlap") for s in sharded):
        fix = f"with tensor parallelism try --fix {OVERLAPPED_TP}=true"
        yield f"{OVERLAPPED_TP} is not searched; {fix}"


def _card(every: list[Structure]) -> Iterator[str]:
    """Cards without bf16."""
    resolved = every[0].resolved
    capability, card = resolved.run.compute_capability, resolved.hardware.title
    if resolved.hardware.card and _generation(capability) < BF16_SINCE:
        if any(s.resolved.run.precision.startswith("bf16") for s in every):
            slow = f"{card} has no bf16 units: bf16 is emulated there, and timed as fp16"
            yield f"{slow}; try --fix training.precision=fp16_mixed"
        if any(_runs_transformer_engine(s) for s in every):
            since = "Transformer Engine is documented for Ampere and later"
            yield f"{since}, not for {card}; try --fix engine.transformer_implementation=local"


def _runs_transformer_engine(structure: Structure) -> bool:
    return structure.resolved.run.options.get("transformer_implementation") == TRANSFORMER_ENGINE


def _generation(capability: str) -> int:
    major = capability.partition(".")[0]
    return int(major) if major.isdigit() else BF16_SINCE


def _optimizers(every: list[Structure]) -> Iterator[str]:
    """Optimizers that take the time of another one."""
    known: dict[str, str] = {}
    for structure in every:
        run = structure.resolved.run
        if other := timed_as(run, structure.engine):
            known.setdefault(run.optimizer, other)
    for name, other in known.items():
        yield f"the step of {name} was not measured, and is timed as that of {other}"
