"""The predicted peak of each measured phase, from the instants of a ledger or from a replay.

A ledger describes a later step, at whose start the optimizer states are alive. In the first step,
states that the optimizer allocates in its first call are missing until that call. A phase lasts
from the end of the previous one to its own end, and what is alive at its start counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from ...ledger.ledger import GPU, OPTIM, TEMP, Entry, Instant, Ledger
from ...pytorch.replay.footprint import ReplayPhase as Replay
from ...run.phases import BACKWARD, EVALUATION, FORWARD, GENERATION, OPTIMIZER, STARTUP
from ...training.generation.instants import DECODE, PREFILL
from ...training.step.stream import STARTUP_MARK
from ..jobs.phases import StepPhase, parse

KINDS = {
    "fwd": (FORWARD,),
    "bwd": (BACKWARD,),
    "fwdbwd": (FORWARD, BACKWARD),
    "sync": (),
    "opt": (OPTIMIZER,),
    "eval": (EVALUATION,),
    "step": (GENERATION, FORWARD, BACKWARD, OPTIMIZER),
}
WORDS = {
    "fwd": "forward",
    "bwd": "backward",
    "fwdbwd": "forward and backward",
    "sync": "gradient sync",
    "opt": "optimizer",
    "eval": "evaluation",
    "step": "whole step",
}
# The measured phases of an inference run, and the ledger's phases in them.
SERVED = {"load": (STARTUP,), "prefill": (PREFILL,), "generate": (PREFILL, DECODE)}
# Names of instants in the ledgers.
STEP = "optimizer"
BEFORE_BACKWARD = ("loss.backward", "gather.root")


def title(name: str) -> str:
    """The title under which phases are grouped in tables, such as `first step: forward`."""
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
    """The peak in bytes of each measured phase, from the phases of a replay.

    Steps and micro-batches after the last replayed one have its peaks.
    """
    parsed = [phase for phase in map(parse, phases) if phase is not None]
    last = max((phase.step for phase in parsed), default=0)
    latest = max((phase.micro_batch or 0 for phase in parsed), default=0)
    starts = [name for name in names if parse(name) is None]
    peaks_by_name = {
        name: phases[name].peak_bytes for name in SERVED if name in names and name in phases
    }
    if len(starts) == 1 and STARTUP_MARK in phases:  # all of start-up is in it
        peaks_by_name[starts[0]] = phases[STARTUP_MARK].peak_bytes
    for name in names:
        phase = parse(name)
        if phase is None:
            continue
        phase = _with_forward(name, phase, names)
        step = f"s{min(phase.step, last)}"
        if phase.kind == "step":
            own = [one.peak_bytes for mark, one in phases.items() if mark.startswith(f"{step}.")]
            peaks_by_name[name] = max(own)
            continue
        words = [f"{step}.{word}" for word in _replay_phases(phase, micro_batches, latest)]
        peaks = [phases[word].peak_bytes for word in words if word in phases]
        if peaks:
            peaks_by_name[name] = max(peaks)
    return peaks_by_name


def _replay_phases(phase: StepPhase, micro_batches: int, latest: int) -> Iterator[str]:
    """The names of a phase's parts in a replay whose last micro-batch is `latest`."""
    if phase.kind == "opt":  # DeepSpeed's step() does nothing before the last micro-batch
        if phase.micro_batch in (None, micro_batches - 1):
            yield "opt"
        return
    numbers = range(latest + 1) if phase.micro_batch is None else (min(phase.micro_batch, latest),)
    words = [word for word in ("fwd", "bwd") if word in phase.kind]
    yield from (f"a{number}.{word}" for number in numbers for word in words)


def phase_peaks(ledger: Ledger, names: tuple[str, ...], micro_batches: int) -> dict[str, int]:
    """The peak in bytes of each measured phase that has instants in the ledger."""
    first = _first_step(ledger)
    peaks = {}
    peak: int | None
    for name in names:
        phase = parse(name)
        if name in SERVED and any(i.phase == PREFILL for i in ledger.instants):
            peak = int(ledger.peak(phases=SERVED[name]))
        elif phase is None:
            peak = _startup_peak(ledger, name, names)
        else:
            phase = _with_forward(name, phase, names)
            heights = first if phase.step == 0 else ledger.heights()
            instants = _instants(ledger, phase, micro_batches)
            peak = max((int(heights[i.name]) for i in instants), default=None)
            if peak is not None and _follows_step(phase, names):
                peak = max(peak, _rest_bytes(ledger))
        if peak is not None:
            peaks[name] = peak
    return peaks


def _with_forward(name: str, phase: StepPhase, names: tuple[str, ...]) -> StepPhase:
    """The phase; a backward phase without a forward phase of its own includes the forward."""
    if phase.kind == "bwd" and name.removesuffix("bwd") + "fwd" not in names:
        return replace(phase, kind="fwdbwd")
    return phase


def _follows_step(phase: StepPhase, names: tuple[str, ...]) -> bool:
    """Whether the gradients of the previous step are still alive when a phase starts.

    They are set to None after the optimizer's phase has ended. An optimizer phase that belongs to a
    micro-batch (DeepSpeed's) has already freed them.
    """
    begins = phase.kind in ("fwd", "fwdbwd") and not phase.micro_batch
    return begins and f"s{phase.step - 1}.opt" in names


def _rest_bytes(ledger: Ledger) -> int:
    """Bytes after an optimizer step: everything alive at that instant except temporaries."""
    return sum(int(e.at(STEP)) for e in ledger.entries if e.place == GPU and e.kind != TEMP)


def _startup_peak(ledger: Ledger, name: str, names: tuple[str, ...]) -> int | None:
    """The peak of a start-up phase: of the instant with its name, else of all of start-up.

    All of start-up is in phase `init` where a run has it (DeepSpeed), else in `model`; other phases
    have no peak.
    """
    starts = [i for i in ledger.instants if i.phase == STARTUP and i.present]
    named = [i for i in starts if i.name == f"startup.{name}"]
    main = "init" if "init" in names else "model"
    instants = named or (starts if name == main else [])
    return max((int(ledger.at(i)) for i in instants), default=None)


def _instants(ledger: Ledger, phase: StepPhase, micro_batches: int) -> list[Instant]:
    """The instants of a phase; empty where the ledger has none for it."""
    kinds = KINDS[phase.kind]
    instants = [
        i
        for i in ledger.instants
        if i.present and i.phase in kinds and (phase.step == 0 or not i.step)
    ]
    if phase.micro_batch is None:
        return instants
    if phase.kind == "opt":  # DeepSpeed's step() does nothing before the last micro-batch
        return instants if phase.micro_batch == micro_batches - 1 else []
    later = [i for i in instants if i.micro_batch]
    if phase.micro_batch > 0:
        return later or instants
    return [i for i in instants if i not in later]


def _first_step(ledger: Ledger) -> dict[str, int]:
    """Bytes at every instant of the first step: optimizer states count once it was called.

    The workspace of backward's matmuls, one of two, is not yet allocated during the first forward
    and the first loss.
    """
    heights = {i.name: int(ledger.at(i)) for i in ledger.instants}
    lazy = [e for e in ledger.entries if e.place == GPU and _lazy(e, ledger)]
    workspaces = [e for e in ledger.entries if e.since == BACKWARD]
    for instant in ledger.instants:
        if instant.present and instant.phase != STARTUP and instant.name != STEP:
            heights[instant.name] -= sum(int(e.at(instant.name)) for e in lazy)
        before = instant.where in BEFORE_BACKWARD and not instant.step
        if instant.phase == FORWARD or before:
            missing = 0 if instant.micro_batch else 1
            heights[instant.name] -= missing * sum(int(e.at(instant.name)) for e in workspaces)
    return heights


def _lazy(entry: Entry, ledger: Ledger) -> bool:
    """Whether an entry is an optimizer state that is not allocated during start-up."""
    if entry.kind != OPTIM:
        return False
    starts = (i.name for i in ledger.instants if i.phase == STARTUP and i.present)
    return not any(int(entry.at(name)) for name in starts)
