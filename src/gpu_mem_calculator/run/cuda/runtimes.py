"""Cards that are not NVIDIA's: the words of their software, and what is taken from NVIDIA's.

Memory outside tensors was measured on NVIDIA cards alone. An answer for another card has the same
bytes under that card's own words, and a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from .chips import CHIPS

if TYPE_CHECKING:
    from ...ledger.ledger import Ledger
    from ..engine import Engine
    from ..run import Run
    from ..served import NamedBytes, ServerMemory

CUDA, ROCM, XPU, GAUDI, TPU, METAL = "cuda", "rocm", "xpu", "gaudi", "tpu", "metal"
VENDORS = {"nvidia": CUDA, "amd": ROCM, "intel": XPU, "google": TPU, "apple": METAL}
# NVIDIA's words, and what is written instead of them, in this order.
NVIDIAS = "CUDA context|CUDA's|cuBLASLt|cuBLAS|cuDNN attention|NCCL|nvidia-smi|CUDA"
OTHERS = {
    ROCM: "HIP context|HIP's|hipBLASLt|hipBLAS|attention|RCCL|rocm-smi|HIP",
    XPU: "Level Zero context|XPU's|oneMKL|oneMKL|attention|oneCCL|xpu-smi|XPU",
    GAUDI: "driver and runtime|the runtime's|matmul|matmul|attention|HCCL|hl-smi|HPU",
    TPU: "driver and runtime|the runtime's|matmul|matmul|attention|collectives|tpu-info|XLA",
    METAL: "driver and runtime|the runtime's|matmul|matmul|attention|collectives|Activity Monitor|"
    "Metal",
}
WORDS: Mapping[str, tuple[tuple[str, str], ...]] = {
    CUDA: (),
    **{
        runtime: tuple(zip(NVIDIAS.split("|"), words.split("|"), strict=True))
        for runtime, words in OTHERS.items()
    },
}
# Which of them a training engine runs on, its row says. bitsandbytes 0.50.2 has CUDA, ROCm, XPU and
# Gaudi.
EVERY = tuple(WORDS)
NOT_METAL = tuple(runtime for runtime in EVERY if runtime != METAL)  # a Mac has one GPU


def runtime_of(vendor: str, architecture: str) -> str:
    """The runtime of a catalogue's card."""
    return GAUDI if architecture.startswith("gaudi") else VENDORS[vendor]


def in_words_of(runtime: str, text: str) -> str:
    """A text with the runtime's words for NVIDIA's."""
    for old, new in WORDS[runtime]:
        text = text.replace(old, new)
    return text


def renamed_parts(run: Run, parts: tuple[NamedBytes, ...]) -> tuple[NamedBytes, ...]:
    """Named bytes under the words of the run's card; sources stay, which say what was measured."""
    return tuple((in_words_of(run.runtime, name), size, source) for name, size, source in parts)


def renamed_ledger(run: Run, ledger: Ledger) -> Ledger:
    """A ledger whose entries have the words of the run's card."""
    if run.runtime == CUDA:
        return ledger
    entries = tuple(replace(e, name=in_words_of(run.runtime, e.name)) for e in ledger.entries)
    return replace(ledger, entries=entries)


def renamed_server(run: Run, served: ServerMemory) -> ServerMemory:
    """A server whose items, notes and problem have the words of the run's card."""
    if run.runtime == CUDA:
        return served
    items = tuple(replace(one, name=in_words_of(run.runtime, one.name)) for one in served.items)
    return replace(
        served,
        items=items,
        outside=renamed_parts(run, served.outside),
        problem=in_words_of(run.runtime, served.problem),
        notes=tuple(in_words_of(run.runtime, note) for note in served.notes),
    )


def other_engine(runtime: str) -> str:
    """The training engine to use on a kind of card that another one does not run on."""
    return "pytorch" if runtime == METAL else "fsdp"


def runtime_problems(
    run: Run, engine: Engine, runtimes: Collection[str], other: Callable[[str], str] = other_engine
) -> Iterator[str]:
    """A sentence where the engine does not run on this kind of card, but on `runtimes`."""
    if run.runtime not in runtimes:
        fix = f"use {other(run.runtime)!r}, or another card"
        yield f"hardware.gpu: {engine.title} does not run on {run.card}; {fix}"


def runtime_notes(run: Run) -> Iterator[str]:
    """A sentence for a card that is not NVIDIA's, or has a compute capability of which nothing is
    known, as a card of the user's own may have.
    """
    if run.runtime != CUDA:
        what = "memory outside tensors, workspaces and attention kernels"
        yield f"{what}: NVIDIA's figures, taken for this card, which was not measured"
    elif run.compute_capability not in CHIPS:
        what = f"of compute capability {run.compute_capability} nothing is known"
        yield f"memory of CUDA and its libraries: {what}; it is taken as an H200's"
