"""What is true of every collective, whatever the card, the link, the ranks and the bytes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from gpu_mem_calculator import catalog
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.timing.curves.collectives import KINDS, collective_seconds
from gpu_mem_calculator.timing.curves.machine import Machine

from .test_lookups import machine

SIZES = 2.0 ** np.arange(8, 34, 0.5)[:, None]
RANKS = np.array([1, 2, 4, 8, 16, 64, 512])[None, :]
LESS = 1 - 1e-9  # rounding


def every_machine() -> dict[str, Machine]:
    """Two nodes of each card whose speed is known."""
    found = {}
    for row in catalog.rows("gpus"):
        try:
            found[row["name"]] = machine(row["name"])
        except InputError:
            continue
    return found


MACHINES = every_machine()


def seconds(one: Machine, kind: str, stride: int) -> Any:
    """Seconds over bytes and ranks."""
    return collective_seconds(one, kind, SIZES, RANKS, stride)


@pytest.mark.parametrize("kind", KINDS)
def test_collectives_take_time_that_grows_with_bytes(kind: str) -> None:
    """None is negative, one rank takes none, and no tensor is faster than a smaller one."""
    for name, one in MACHINES.items():
        for stride in (1, one.domain):
            times = seconds(one, kind, stride)
            assert (times[:, 0] == 0).all(), name
            assert (times[:, 1:] > 0).all(), name
            assert (times[1:] >= times[:-1] * LESS).all(), name


@pytest.mark.parametrize("kind", KINDS)
def test_no_link_between_nodes_is_faster_than_one_within(kind: str) -> None:
    """The same ranks on as many nodes, for every card and every network."""
    for name, one in MACHINES.items():
        assert (seconds(one, kind, one.domain) >= seconds(one, kind, 1) * LESS).all(), name
    for link in catalog.names("links"):
        for card in ("h100-80gb-sxm", "rtx-4090", "v100-32gb-sxm"):
            one = machine(card, interconnect=link)
            assert (seconds(one, kind, one.domain) >= seconds(one, kind, 1) * LESS).all(), link


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scope", ["node", "gpu"])
def test_no_slower_link_is_faster(kind: str, scope: str) -> None:
    """Of two links of a kind, one of which has less of the rate and the longer hop."""
    rows = [row for row in catalog.rows("links") if row["scope"] == scope]
    if scope == "gpu":
        rows = [row for row in rows if row["name"].startswith("pcie")]
    rows.sort(key=lambda row: (row["latency_us"], -row["bandwidth_gb_per_s"]))
    for stride in (1, 4, 8):
        for row, slower in pairwise(rows):
            if row["bandwidth_gb_per_s"] >= slower["bandwidth_gb_per_s"]:
                a, b = (machine("h200", interconnect=link["name"]) for link in (row, slower))
                assert (seconds(b, kind, stride) >= seconds(a, kind, stride) * LESS).all()


def test_a_ring_that_leaves_the_node_waits_for_the_network() -> None:
    """Its slowest hop decides: two ranks within, and a ring of four nodes, whatever its stride."""
    one, size = machine("h100-80gb-sxm", 64), 64 << 20
    near = collective_seconds(one, "send", size, 2, 4)
    for ranks, stride in ((4, 4), (16, 1), (2, 8)):
        far = collective_seconds(one, "send", size, ranks, stride)
        assert far > size / (one.between.port * one.network_share) > 3 * near


def test_gpus_that_send_at_once_share_the_ports() -> None:
    """One ring that leaves a node with one port has all of it, eight have an eighth each."""
    one, size = machine("h100-80gb-sxm", 64, interconnect="ethernet-10g"), 64 << 20
    alone, together = (collective_seconds(one, "send", size, 16, stride) for stride in (1, 8))
    assert alone == pytest.approx(size / (1.25e9 * one.network_share), rel=0.01)
    assert together == pytest.approx(8 * alone, rel=0.01)
