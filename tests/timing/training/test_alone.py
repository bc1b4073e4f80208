"""A rank that nobody keeps waiting: phases of host and GPU, offload."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.estimates.machine import machine_of
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.timing.training.alone import alone_seconds, finished
from gpu_mem_calculator.tools.read import read


def seconds(training: dict[str, Any] | None = None, **engine: Any) -> float:
    """Seconds of a step of a small Llama on one rank of eight."""
    kind = engine.pop("type", "pytorch_ddp")
    file = {
        "model": {"name": "tinyllama-1.1b"},
        "training": {"batch_size": 1, "seq_len": 1024, **(training or {})},
        "engine": {"type": kind, **engine},
        "hardware": {"gpu": "h200", "num_gpus": 1 if kind == "pytorch_ddp" else 8},
    }
    resolved = resolve(read(file).file)
    machine = machine_of(resolved.hardware)
    return float(alone_seconds(resolved.run, resolved.engine.name, machine))


@pytest.mark.parametrize(
    ("phases", "end"),
    [
        ([(1.0, 3.0), (1.0, 3.0)], 6.0),  # the GPU is behind: only its own time counts
        ([(3.0, 1.0), (3.0, 1.0)], 6.0),  # the host is behind: the GPU ends with it
        ([(3.0, 1.0), (1.0, 3.0)], 6.0),  # what was lost in the first phase is not made up
        ([(1.0, 3.0), (3.0, 1.0)], 4.0),  # what the host is ahead is kept for the second
        ([], 0.0),
    ],
)
def test_the_gpu_ends_after_its_work_and_after_the_host(
    phases: list[tuple[float, float]], end: float
) -> None:
    """Phases are launched in order, and run in order."""
    assert finished(phases) == end


def test_engines_add_what_they_do_around_layers() -> None:
    """Hooks of FSDP and ZeRO-3 take longer than a small batch's kernels."""
    plain = seconds({"precision": "bf16_pure"})
    assert plain < seconds(type="fsdp") < seconds(type="deepspeed", zero_stage=3)
    assert seconds(type="deepspeed", zero_stage=1) < seconds(type="deepspeed", zero_stage=2)


def test_checkpointing_costs_the_host_more_than_a_forward() -> None:
    """A step that waits for the host takes over half as long again."""
    full = {"precision": "bf16_pure", "activation_checkpointing": "full"}
    assert seconds(full) > 1.5 * seconds({"precision": "bf16_pure"})


def test_optimizers_differ_by_their_implementation() -> None:
    """Fused is fastest; 8-bit states wait for each tensor; a loop launches most."""
    times = [
        seconds({"precision": "bf16_pure", "optimizer_implementation": name})
        for name in ("fused", "foreach", "forloop")
    ]
    assert times == sorted(times)
    assert seconds({"precision": "bf16_pure", "optimizer": "adamw_8bit"}) > times[0]


def test_a_large_batch_hides_the_host() -> None:
    """Sixteen sequences take less than eight times one."""
    one, many = (seconds({"precision": "bf16_pure", "batch_size": n}) for n in (1, 16))
    assert 2 * one < many < 8 * one


def test_offload_is_added_to_the_step() -> None:
    """Pageable memory is slower than pinned."""
    base = {"type": "deepspeed", "zero_stage": 2}
    pinned = seconds(**base, offload_optimizer="cpu", pin_memory=True)
    pageable = seconds(**base, offload_optimizer="cpu", pin_memory=False)
    assert seconds(**base) < pinned < pageable
