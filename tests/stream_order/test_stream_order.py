"""Estimated streams against traced ones, event by event: torch's own order on fake tensors.

Blocks of the allocator's large pool are compared; smaller ones share segments of 2 MiB.
"""

from __future__ import annotations

import platform
import warnings

import pytest

from gpu_mem_calculator.estimates.stage_replay import stage_requests
from gpu_mem_calculator.pytorch.replay.stream import AllocationStream
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read
from tests.corpus import sampled
from tests.stream_order.compare import LARGE, differences, equal
from tests.stream_order.runs import run_file

EQUAL = (
    "llama bf16_mixed none, one GPU",
    "llama bf16_mixed full, one GPU",
    "llama bf16_pure none, one GPU",
    "mistral bf16_mixed none, one GPU",
    "qwen2 bf16_mixed none, one GPU",
    "qwen2 bf16_pure none, one GPU",
    "llama bf16_pure none LoRA, one GPU",
    "llama bf16_mixed none, DDP",
    "llama bf16_mixed full, FSDP",
    "llama bf16_mixed none, ZeRO-2",
    "llama bf16_mixed full, ZeRO-2",
)
AUTOCAST = ("bf16_mixed none, one GPU", "bf16_mixed full, one GPU", "bf16_mixed none, DDP")
CLOSE = {  # events of the third step's forward and backward that differ
    "gpt2 bf16_mixed none, one GPU": 6,
    "llama bf16_mixed none, ZeRO-3": 4,
}


def streams(name: str) -> tuple[AllocationStream, AllocationStream]:
    """The estimated and the traced stream of a run."""
    pytest.importorskip("torch")
    pytest.importorskip("deepspeed" if "ZeRO" in name else "peft")
    from gpu_mem_calculator.lab.trace.run import trace

    run = run_file(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT's and FSDP's own
        return stage_requests(resolve(read(run).file), 0).usual, trace(run).stream


def steps(asked: AllocationStream) -> dict[str, str]:
    """The phases of the steps; the last optimizer step ends with the program's own frees."""
    names = [name for _, name in asked.marks if name.endswith(("fwd", "bwd"))]
    return {name: name for name in names}


def needs_x86_64(name: str) -> None:
    """Skip a run under autocast elsewhere: torch casts an operation's arguments in the order that
    its compiler chose, and GPUs were measured with x86_64.
    """
    if name.endswith(AUTOCAST) and platform.machine() != "x86_64":
        pytest.skip("autocast casts in another order on this processor")


@pytest.mark.parametrize("name", sampled(EQUAL, keep=2))
def test_a_stream_is_torchs_event_by_event(name: str) -> None:
    """Every large block is allocated and freed where torch does it."""
    needs_x86_64(name)
    ours, theirs = streams(name)
    assert equal(ours, theirs, steps(ours), LARGE + 1), next(
        differences(ours, theirs, steps(ours), LARGE + 1)
    )


@pytest.mark.parametrize(("name", "most"), sampled(CLOSE.items(), keep=1))
def test_few_events_differ_from_torchs(name: str, most: int) -> None:
    """What differs is at the embedding, or where an engine takes over a tensor."""
    needs_x86_64(name)
    ours, theirs = streams(name)
    phases = {phase: phase for phase in steps(ours) if phase.startswith("s2.")}
    found = differences(ours, theirs, phases, LARGE + 1)
    assert sum(one.count for one in found) <= most
