"""Why a plan is where it is, and what each of its knobs costs or saves."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ....estimates.machine import machine_of
from ....ledger.units import gib
from ....timing.training.step import step_seconds
from ....training.step.layer_groups import equal_layers
from ..answers.plans import KnobEffect, Plan
from .axes import COUNT_LOSS, KEYS, OVERLAPPED, PIPE, RANK
from .limits import tie
from .memory import highest_stage, peak_bytes
from .search import Found, SetUp, at_sizes, named_settings
from .structures import Structure

FOLLOWING = {COUNT_LOSS, OVERLAPPED}  # choices that another one decides
PARTS_IN_WORDS = {
    "compute": "computing",
    "host": "waiting for the host to launch kernels",
    "exposed_communication": "communication that nothing overlaps",
    "bubble": "the pipeline's bubble",
    "optimizer": "the optimizer step",
    "offload": "moving data between GPU and host",
}


def explained(
    plans: list[Plan], found: Found, every: list[Structure], global_batch: int
) -> list[Plan]:
    """Plans with their reasons; the first one also with what its knobs cost or save."""
    if not plans:
        return plans
    best = next((one for one in found.kept if named_settings(one) == plans[0].settings), None)
    first, *others = reasoned(plans, found)
    return [replace(first, knobs=knobs(best, every, global_batch) if best else []), *others]


def reasoned(plans: list[Plan], found: Found) -> list[Plan]:
    """Plans with the reasons for their order."""
    others = [replace(plan, why=list(_against_best(plan, plans[0]))) for plan in plans[1:]]
    return [*(replace(plan, why=list(_best_reasons(plans, found))) for plan in plans[:1]), *others]


def _best_reasons(plans: list[Plan], found: Found) -> Iterator[str]:
    best = plans[0]
    yield (
        f"It is the fastest of {found.feasible:,} set-ups whose tensors fit, "
        f"out of {found.set_ups:,} that are possible."
    )
    yield _parts_sentence(best)
    slower = next((p for p in plans[1:] if p.needs_bytes < 0.8 * best.needs_bytes), None)
    if slower is not None:
        ratio = slower.step_seconds.estimate / best.step_seconds.estimate - 1
        yield (
            f"Plan {slower.rank} needs {gib(best.needs_bytes - slower.needs_bytes)} GiB less, "
            f"and its step takes {100 * ratio:.0f} % longer."
        )
    yield from tie(plans)
    yield from (f"Not counted: {one}." for one in best.open)


def _parts_sentence(plan: Plan) -> str:
    """Where the time of a step is spent."""
    whole = plan.step_seconds.estimate or 1.0
    shares = sorted(((v / whole, k) for k, v in plan.step_seconds.parts.items()), reverse=True)
    words = [
        f"{100 * share:.0f} % is {PARTS_IN_WORDS[name]}"
        for share, name in shares[:3]
        if share > 0.005
    ]
    return "Of a step " + ", ".join(words) + "."


def _against_best(plan: Plan, best: Plan) -> Iterator[str]:
    """How a plan differs from the best one, and what that changes."""
    slower = plan.step_seconds.estimate / best.step_seconds.estimate - 1
    saved = best.needs_bytes - plan.needs_bytes
    memory = f"needs {gib(abs(saved))} GiB {'less' if saved > 0 else 'more'} than plan 1"
    most = _largest_change(plan, best)
    yield f"Its step takes {100 * slower:.1f} % longer and it {memory}; {most}."


def _largest_change(plan: Plan, best: Plan) -> str:
    """The part of the time that grows most."""
    parts = {
        name: value - best.step_seconds.parts.get(name, 0.0)
        for name, value in plan.step_seconds.parts.items()
    }
    name = max(parts, key=lambda one: parts[one])
    return f"{PARTS_IN_WORDS[name]} takes {1e3 * parts[name]:,.0f} ms more"


def compared(plans: list[Plan]) -> list[Plan]:
    """A user's own set-ups with the reasons for their order."""
    if not plans:
        return plans
    best = plans[0]
    first = replace(best, why=[_parts_sentence(best)] if best.fits_on_gpu else [_short(best)])
    first.why.extend(f"Not counted: {one}." for one in best.open)
    others = [
        replace(plan, why=[_short(plan)] if not plan.fits_on_gpu else list(_rate(plan, best)))
        for plan in plans[1:]
    ]
    return [first, *others]


def _short(plan: Plan) -> str:
    return f"It does not fit: {gib(-plan.headroom_bytes)} GiB are missing on each GPU."


def _rate(plan: Plan, best: Plan) -> Iterator[str]:
    slower = 1 - plan.tokens_per_second / best.tokens_per_second
    yield f"It has {100 * slower:.1f} % fewer tokens per second than {best.rank}."
    yield _parts_sentence(plan)


def knobs(best: SetUp, every: list[Structure], global_batch: int) -> list[KnobEffect]:
    """The effect of moving one size of a set-up to its neighbours, or of one other choice, by
    ledger and time model: what fits first, then by the change of memory.
    """
    changes = [*_other_sizes(best), *_other_choices(best, every)]
    effects = [_effect(best, *change, global_batch) for change in changes]
    known = [effect for effect in effects if effect is not None]
    return sorted(known, key=lambda one: (not one.fits_on_gpu, -abs(one.needs_bytes)))


Change = tuple[Structure, dict[str, int], dict[str, object]]  # with sizes, and keys that change


def _other_sizes(best: SetUp) -> Iterator[Change]:
    structure = best.structure
    for axes, rows in ((PIPE, structure.pipes), (RANK, structure.ranks)):
        own = tuple(best.sizes[axis] for axis in axes)
        for place, axis in enumerate(axes):
            line = sorted(row for row in rows if _same_but(row, own, place))
            at = line.index(own)
            for other in (*line[max(at - 1, 0) : at], *line[at + 1 : at + 2]):
                sizes = {**best.sizes, axis: other[place]}
                yield structure, sizes, {KEYS[axis]: other[place]}


def _same_but(row: tuple[int, ...], own: tuple[int, ...], place: int) -> bool:
    """Whether two rows of sizes differ at one place at most."""
    return all(a == b for i, (a, b) in enumerate(zip(row, own, strict=True)) if i != place)


def _other_choices(best: SetUp, every: list[Structure]) -> Iterator[Change]:
    """Structures that differ from a set-up's in one choice, at its sizes."""
    own, seen = best.structure.settings, set()
    pipe, rank = (tuple(best.sizes[axis] for axis in axes) for axes in (PIPE, RANK))
    for structure in every:
        settings = structure.settings
        keys = {k for k in {*own, *settings} - FOLLOWING if own.get(k) != settings.get(k)}
        if len(keys) == 1 and pipe in structure.pipes and rank in structure.ranks:
            (key,) = keys
            change = (key, settings.get(key))
            if change not in seen:
                seen.add(change)
                yield structure, dict(best.sizes), {key: settings.get(key)}


def _effect(
    best: SetUp,
    structure: Structure,
    sizes: dict[str, int],
    change: dict[str, object],
    global_batch: int,
) -> KnobEffect | None:
    """The effect of a change on the ledger's peak and the time of a step; None where the engine
    refuses it.
    """
    import numpy as np

    resolved = at_sizes(structure, sizes, global_batch)
    if resolved is None:
        return None
    run = resolved.run
    peak = int(np.max(peak_bytes(resolved, run))) if equal_layers(run) else highest_stage(resolved)
    machine = machine_of(resolved.hardware)
    seconds = float(step_seconds(run, structure.engine, machine).estimate)
    more = peak - best.allocated_bytes
    return KnobEffect(
        change=change,
        needs_bytes=more,
        step_seconds=seconds - best.seconds,
        fits_on_gpu=best.total_bytes + more <= resolved.hardware.memory_bytes,
    )
