"""FSDP2 as a job: what a trace cannot show."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.lab.jobs.job import Job, World
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from tests.conftest import small_run


def test_offload_is_not_traced() -> None:
    """Fake tensors are all on the CPU, where the host's and the GPU's look the same."""
    pytest.importorskip("torch")
    from gpu_mem_calculator.lab.jobs.fsdp import shard

    file = read(small_run("fsdp", 8, engine={"type": "fsdp", "cpu_offload": True})).file
    world = World(device="cpu", mark=lambda _: None)
    with pytest.raises(InputError, match="use calculate or measure"):
        shard(Job(file=file, resolved=resolve(file), world=world), None, [])


@pytest.mark.parametrize(
    ("engine", "sizes", "names"),
    [
        ({}, (8,), ("shard",)),
        ({"sharding_strategy": "shard_grad_op"}, (8,), ("shard",)),
        (
            {"sharding_strategy": "hybrid_shard", "hybrid_shard_size": 4},
            (2, 4),
            ("replicate", "shard"),
        ),
        (
            {"sharding_strategy": "hybrid_shard", "hybrid_shard_size": 8},
            (1, 8),
            ("replicate", "shard"),
        ),
    ],
)
def test_replicas_are_an_axis_of_hybrid_shard(
    monkeypatch: pytest.MonkeyPatch,
    engine: dict[str, Any],
    sizes: tuple[int, ...],
    names: tuple[str, ...],
) -> None:
    """Also where there is one; other strategies shard over all ranks."""
    pytest.importorskip("torch")
    from gpu_mem_calculator.lab.jobs import fsdp

    monkeypatch.setattr(fsdp, "mesh_of", lambda job, *axes: axes)
    file = read(small_run("fsdp", 8, engine={"type": "fsdp", **engine})).file
    world = World(device="cpu", mark=lambda _: None)
    assert fsdp.mesh(Job(file=file, resolved=resolve(file), world=world)) == (sizes, names)
