"""Which instants of a ledger lie in which measured phase.

A ledger tells one step, with everything there that a later step finds. In the first step what
the optimizer makes when it is first called is missing until that call. A phase reaches from the
end of the one before it to its own end, and what is alive at its start counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from ..generation.instants import DECODE, PREFILL
from ..ledger.ledger import GPU, OPTIM, TEMP, Entry, Instant, Ledger
from ..replay.allocator import ReplayPhase as Replay
from ..run.phases import BACKWARD, FORWARD, OPTIMIZER, STARTUP
from ..step.stream import STARTUP_MARK

KINDS = {
    "fwd": (FORWARD,), "bwd": (BACKWARD,), "fwdbwd": (FORWARD, BACKWARD), "opt": (OPTIMIZER,),
}  # fmt: skip
NAME = re.compile(r"s(\d+)(?:\.[am](\d+))?\.(fwd|bwd|fwdbwd|sync|opt)")
WORDS = {"fwd": "forward", "bwd": "backward", "fwdbwd": "forward and backward",
         "sync": "gradient sync", "opt": "optimizer"}  # fmt: skip
# The phases of an inference run, by name.
SERVED = {"load": (STARTUP,), "prefill": (PREFILL,), "generate": (PREFILL, DECODE)}
# Names that engines give their instants.
STEP = "optimizer"
BEFORE_BACKWARD = ("loss.backward", "gather.root")


class StepPhase(Struct, frozen=True):
    """A phase of the steps: which step, which micro-batch (None: all of them), what runs."""

    step: int
    micro_batch: int | None
    kind: str


def parse(name: str) -> StepPhase | None:
    """`s1.a0.bwd` in its parts; None for a phase of start-up."""
    found = NAME.fullmatch(name)
    if found is None:
        return None
    return StepPhase(int(found[1]), None if found[2] is None else int(found[2]), found[3])


def title(name: str) -> str:
    """The kind of phase that rows of a table share: `first step: forward`."""
    phase = parse(name)
    if name in ("prefill", "generate"):
        return f"inference: {name}"
    if phase is None:
        return f"start-up: {name}"
    step = "first step" if phase.step == 0 else "later steps"
    return f"{step}: {WORDS[phase.kind]}"


def replayed_peaks(
    phases: Mapping[str, Replay], names: tuple[str, ...], micro_batches: int
) -> dict[str, int]:
    """The peak of each measured phase of the steps, and of start-up, from a replay's own phases.

    Steps and micro-batches after the last one that was replayed are like it.
    """
    parsed = [phase for phase in map(parse, phases) if phase is not None]
    last = max((phase.step for phase in parsed), default=0)
    latest = max((phase.micro_batch or 0 for phase in parsed), default=0)
    starts = [name for name in names if parse(name) is None]
    found = {name: phases[name].peak_bytes for name in SERVED if name in names and name in phases}
    if len(starts) == 1 and STARTUP_MARK in phases:  # all of start-up is in it
        found[starts[0]] = phases[STARTUP_MARK].peak_bytes
    for name in names:
        phase = parse(name)
        if phase is None:
            continue
        phase = _whole(name, phase, names)
        step = f"s{min(phase.step, last)}"
        words = [f"{step}.{word}" for word in _words(phase, micro_batches, latest)]
        peaks = [phases[word].peak_bytes for word in words if word in phases]
        if peaks:
            found[name] = max(peaks)
    return found


def _words(phase: StepPhase, micro_batches: int, latest: int) -> Iterator[str]:
    """What a replay, whose last micro-batch is `latest`, calls the parts of a phase."""
    if phase.kind == "opt":  # DeepSpeed's step() does nothing before the last micro-batch
        if phase.micro_batch in (None, micro_batches - 1):
            yield "opt"
        return
    numbers = (range(latest + 1) if phase.micro_batch is None
               else (min(phase.micro_batch, latest),))  # fmt: skip
    words = {"fwd": ("fwd",), "bwd": ("bwd",), "fwdbwd": ("fwd", "bwd")}.get(phase.kind, ())
    yield from (f"a{number}.{word}" for number in numbers for word in words)


def phase_peaks(ledger: Ledger, names: tuple[str, ...], micro_batches: int) -> dict[str, int]:
    """The predicted peak of each phase that has instants in the ledger."""
    first = _first_step(ledger)
    found = {}
    peak: int | None
    for name in names:
        phase = parse(name)
        if name in SERVED and any(i.phase == PREFILL for i in ledger.instants):
            peak = int(ledger.peak(phases=SERVED[name]))
        elif phase is None:
            peak = _startup_peak(ledger, name, names)
        else:
            phase = _whole(name, phase, names)
            heights = first if phase.step == 0 else ledger.heights()
            here = _instants(ledger, phase, micro_batches)
            peak = max((int(heights[i.name]) for i in here), default=None)
            if peak is not None and _follows_step(phase, names):
                peak = max(peak, _rest_bytes(ledger))
        if peak is not None:
            found[name] = peak
    return found


def _whole(name: str, phase: StepPhase, names: tuple[str, ...]) -> StepPhase:
    """A backward whose forward was not marked has both in it."""
    if phase.kind == "bwd" and name.removesuffix("bwd") + "fwd" not in names:
        return replace(phase, kind="fwdbwd")
    return phase


def _follows_step(phase: StepPhase, names: tuple[str, ...]) -> bool:
    """Whether the gradients of the step before are still there when a phase starts.

    They are set to None after the optimizer's phase has ended; an optimizer phase that belongs
    to a micro-batch (DeepSpeed's) has let them go already.
    """
    begins = phase.kind in ("fwd", "fwdbwd") and not phase.micro_batch
    return begins and f"s{phase.step - 1}.opt" in names


def _rest_bytes(ledger: Ledger) -> int:
    """What an optimizer step leaves: everything at that instant but its temporaries."""
    return sum(int(e.at(STEP)) for e in ledger.entries if e.place == GPU and e.kind != TEMP)


def _startup_peak(ledger: Ledger, name: str, names: tuple[str, ...]) -> int | None:
    """A phase that an instant is named after; else the one phase in which start-up happens.

    Rows that have `init` (DeepSpeed) build the model before it and do the rest in it.
    """
    starts = [i for i in ledger.instants if i.phase == STARTUP and i.present]
    named = [i for i in starts if i.name == f"startup.{name}"]
    main = "init" if "init" in names else "model"
    here = named or (starts if name == main else [])
    return max((int(ledger.at(i)) for i in here), default=None)


def _instants(ledger: Ledger, phase: StepPhase, micro_batches: int) -> list[Instant]:
    """The instants of a phase; none where the phase does nothing that the ledger tells."""
    kinds = KINDS.get(phase.kind, ())
    here = [i for i in ledger.instants if i.present and i.phase in kinds
            and (phase.step == 0 or not i.step)]  # fmt: skip
    if phase.micro_batch is None:
        return here
    if phase.kind == "opt":  # DeepSpeed's step() does nothing before the last micro-batch
        return here if phase.micro_batch == micro_batches - 1 else []
    later = [i for i in here if i.micro_batch]
    if phase.micro_batch > 0:
        return later or here
    return [i for i in here if i not in later]


def _first_step(ledger: Ledger) -> dict[str, int]:
    """Bytes at every instant of the first step: what the optimizer makes comes with its call.

    The workspace of backward's matmuls, one of two, is not there while the first forward and the
    first loss run.
    """
    heights = {i.name: int(ledger.at(i)) for i in ledger.instants}
    lazy = [e for e in ledger.entries if e.place == GPU and _lazy(e, ledger)]
    halves = [e for e in ledger.entries if e.since == BACKWARD]
    for instant in ledger.instants:
        if instant.present and instant.phase != STARTUP and instant.name != STEP:
            heights[instant.name] -= sum(int(e.at(instant.name)) for e in lazy)
        before = instant.where in BEFORE_BACKWARD and not instant.step
        if instant.phase == FORWARD or before:
            late = 0 if instant.micro_batch else 1
            heights[instant.name] -= late * sum(int(e.at(instant.name)) for e in halves)
    return heights


def _lazy(entry: Entry, ledger: Ledger) -> bool:
    """Whether an entry is the optimizer's and not there at the end of start-up."""
    if entry.kind != OPTIM:
        return False
    starts = (i.name for i in ledger.instants if i.phase == STARTUP and i.present)
    return not any(int(entry.at(name)) for name in starts)
