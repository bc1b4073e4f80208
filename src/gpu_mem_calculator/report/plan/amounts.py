"""Amounts of plans as text: memory of the card, seconds, tokens a second, GPU-hours, cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from ...ledger.units import count
from ...runfile.config import GPUConfig
from ...runfile.read import section
from ...runfile.resolve.hardware import Hardware, find_hardware
from ...tools.translation.arguments import tables

if TYPE_CHECKING:
    from ...advice.planner.answers.plans import Plan

PARTS: Mapping[str, str] = tables(__file__)  # what seconds are spent on, in their order


@cache
def _card(gpu: tuple[tuple[str, Any], ...]) -> Hardware:
    return find_hardware(section("hardware", GPUConfig, dict(gpu)), None)


def card(hardware: Mapping[str, Any]) -> Hardware:
    """The GPUs of a `hardware` section."""
    return _card(tuple(sorted(hardware.items())))


def card_bytes(plan: Plan) -> int:
    """Bytes that the card must have: needs, margin, and what is outside torch."""
    return card(plan.run.get("hardware") or {}).memory_bytes - plan.headroom_bytes


def seconds_text(seconds: float) -> str:
    """Seconds with two or three digits: 0.00034, 0.153, 12.4, 1,340."""
    if 0 < seconds < 0.1:
        return f"{seconds:.2g}" if seconds >= 1e-4 else f"{seconds:.1e}"
    if seconds >= 100:
        return f"{seconds:,.0f}"
    digits = 1 if seconds >= 10 else 2 if seconds >= 1 else 3
    return f"{seconds:.{digits}f}"


def difference_text(seconds: float, whole: float) -> str:
    """A difference of seconds with its sign, and one digit more than the whole is written with."""
    digits = 2 if whole >= 10 else 3 if whole >= 1 else 4
    return f"{seconds:+,.{digits}f}"


def rate_text(per_second: float) -> str:
    """A number of tokens with three digits: 950, 13.5 K, 1.35 M."""
    return count(round(per_second)) if per_second >= 1 else f"{per_second:.2g}"


def training_words(plan: Plan) -> Iterator[str]:
    """How long the whole training takes, its GPU-hours and its cost, as far as they are known."""
    if plan.gpu_hours is None:
        return
    gpus = card(plan.run.get("hardware") or {}).num_gpus
    yield f"{duration_text(3600 * plan.gpu_hours / gpus)}"
    yield f"{count(round(plan.gpu_hours))} GPU-hours"
    if plan.cost is not None:
        yield f"cost {count(round(plan.cost))}"


def duration_text(seconds: float) -> str:
    """A duration in days, hours or minutes."""
    for unit, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:,.1f} {name}"
    return f"{seconds:.0f} seconds"


def time_parts(plan: Plan) -> Iterable[tuple[str, str, float]]:
    """The parts of a step that take time: key, title, seconds."""
    parts = plan.step_seconds.parts
    known = [(key, title, parts.get(key, 0.0)) for key, title in PARTS.items()]
    others = [(key, key.replace("_", " "), s) for key, s in parts.items() if key not in PARTS]
    return [one for one in (*known, *others) if one[2] > 0]
