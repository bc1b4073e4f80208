"""Machines whose card and host share one memory: what is free of it, and what both take."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator import estimate
from gpu_mem_calculator.catalog import rows
from gpu_mem_calculator.estimates.fit_verdict import FITS, SHORT, UNSURE
from gpu_mem_calculator.estimates.verdict_words import verdict_line
from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.runfile.config import GPUConfig
from gpu_mem_calculator.runfile.resolve.hardware import UNIFIED, find_hardware

SPARK = {"gpu": "dgx-spark-128gb"}
SERVER = {"model": {"name": "llama3.1-8b"}, "inference": {"engine": "vllm"}}
MAPPED = "VRAM and GTT"


@pytest.mark.parametrize("row", [row for row in rows("gpus") if row["kind"] == UNIFIED])
def test_every_such_card_leaves_the_system_its_part(row: dict[str, Any]) -> None:
    """The card has at most what the whole has less that; the node has the same memory."""
    found = find_hardware(GPUConfig(gpu=row["name"]), None)
    assert found.shared is not None
    assert found.node_bytes == found.shared.free_bytes
    assert found.memory_bytes <= found.shared.free_bytes < row["memory_gb"] * GIB
    assert 0 < found.shared.unsure_bytes < found.shared.free_bytes


def test_a_card_of_its_own_shares_nothing() -> None:
    """Its host is not known."""
    found = find_hardware(GPUConfig(gpu="h100-80gb-sxm"), None)
    assert (found.shared, found.node_bytes, found.limits) == (None, None, ())


@pytest.mark.parametrize(
    ("section", "free"),
    [
        ({"available_memory_bytes": 50 * GIB}, 50),
        ({"node_memory_gb": 100, "used_memory_bytes": 20 * GIB}, 80),
        ({"node_memory_gb": 40, "available_memory_bytes": 50 * GIB}, 40),
    ],
)
def test_what_is_said_is_not_open(section: dict[str, Any], free: int) -> None:
    """What the system has free, as it is or less what is held of it."""
    found = find_hardware(GPUConfig(**SPARK, **section), None)
    assert (found.memory_bytes, found.limits) == (free * GIB, ())


@pytest.mark.parametrize(("share", "word"), [(0.8, FITS), (0.92, UNSURE), (0.98, SHORT)])
def test_a_servers_share_meets_what_the_system_leaves(share: float, word: str) -> None:
    """vLLM's share is of the whole; between the best and the worst machine it is open."""
    data = {**SERVER, "inference": {"engine": "vllm", "gpu_memory_utilization": share}}
    found = estimate({**data, "hardware": SPARK})
    assert found.verdict == word
    assert ("memory of the system" in verdict_line(found)) == (word == UNSURE)


@pytest.mark.parametrize(("free", "word"), [(13, SHORT), (16, UNSURE), (60, FITS)])
def test_card_and_host_take_of_the_same(free: int, word: str) -> None:
    """What offloading puts on the host is taken from the card's own memory."""
    run = {
        "model": {"name": "qwen2.5-0.5b"},
        "training": {"seq_len": 512, "batch_size": 1},
        "engine": {"type": "deepspeed", "zero_stage": 2, "offload_optimizer": "cpu"},
        "hardware": {**SPARK, "available_memory_bytes": free * GIB},
    }
    found = estimate(run)
    assert found.host is not None
    assert found.host.shared
    most = max(one.host_bytes + one.gpu_bytes for one in found.phases if one.asked)
    assert found.host.bytes_per_node > most
    assert "GiB for card and host" in found.host.words
    assert found.verdict == word, (verdict_line(found), found.host)


def test_half_of_strix_halo_is_mapped_unless_more_is_said() -> None:
    """With the firmware's and the kernel's settings it is what they say."""
    usual = find_hardware(GPUConfig(gpu="strix-halo"), None)
    assert MAPPED in [one.key for one in usual.limits]
    said = find_hardware(GPUConfig(gpu="strix-halo", gpu_memory_bytes=96 * GIB), None)
    assert MAPPED not in [one.key for one in said.limits]


def test_a_macs_working_set_is_a_share_of_its_memory() -> None:
    """About two thirds of a small one, three quarters of a large one."""
    for row in rows("gpus"):
        if row["vendor"] == "apple":
            share = row["memory_bytes"] / (row["memory_gb"] * GIB)
            assert 0.66 < share < 0.76, row["name"]
