"""FSDP2 as a job: what a trace cannot show."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.core.errors import InputError
from gpu_mem_calculator.core.resolve import resolve
from gpu_mem_calculator.core.runfile import read
from gpu_mem_calculator.jobs.job import Job, World
from tests.conftest import small_run


def test_offload_is_not_traced() -> None:
    """Fake tensors are all on the CPU, where the host's and the GPU's look the same."""
    pytest.importorskip("torch")
    from gpu_mem_calculator.jobs.fsdp import shard

    file = read(small_run("fsdp", 8, engine={"type": "fsdp", "cpu_offload": True}))
    world = World(device="cpu", mark=lambda _: None)
    with pytest.raises(InputError, match="use calculate or measure"):
        shard(Job(file=file, resolved=resolve(file), world=world), None, [])
