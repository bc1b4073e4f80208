"""Collectives over data-parallel ranks."""

from __future__ import annotations

from gpu_mem_calculator.estimates.machine import machine_of
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.timing.training.parameters import RankParameters
from gpu_mem_calculator.timing.training.synchronization import Synchronization, synchronization
from gpu_mem_calculator.tools.read import read


def collectives(instances: int) -> Synchronization:
    """Those of a distributed optimizer on two nodes."""
    resolved = resolve(
        read(
            {
                "model": {"name": "llama3.2-1b"},
                "engine": {
                    "type": "megatron_lm",
                    "distributed_optimizer": True,
                    "num_distributed_optimizer_instances": instances,
                },
                "hardware": {"gpu": "h100-80gb-sxm", "num_gpus": 16, "gpus_per_node": 8},
            }
        ).file
    )
    machine = machine_of(resolved.hardware, "roce-50g")
    owned = RankParameters(dense=10**9, experts=0, trained=10**9, stepped=10**9)
    return synchronization(resolved.run, "megatron_lm", machine, owned)


def test_an_instance_in_each_node_gathers_without_the_network() -> None:
    """Weights cross NVLink alone; the shards of gradients are all-reduced between nodes."""
    one, two = collectives(1), collectives(2)
    assert two.gather < one.gather / 5
    assert two.reduce > one.reduce
