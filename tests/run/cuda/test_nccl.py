"""NCCL's memory, compared with measurements and with what others report."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.ledger.units import GIB, MIB
from gpu_mem_calculator.run.cuda.libraries import NCCL_BYTES
from gpu_mem_calculator.run.cuda.nccl import (
    LIBRARY_BYTES,
    NET_BYTES,
    PEER_BYTES,
    SEND_BYTES,
    STREAMS_BYTES,
    Communicator,
    communicators,
    communicators_bytes,
    group_bytes,
    nccl,
    num_channels,
    pairs_bytes,
    table_bytes,
)
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read
from tests.conftest import SMALL_LLAMA, small_run

ALONE, NODE, H100 = Communicator(1, 1), Communicator(8, 8), "9.0"


@pytest.mark.parametrize(("channels", "measured"), [(1, 10), (2, 16), (8, 52), (64, 388)])
def test_the_tables_are_the_measured_ones(channels: int, measured: int) -> None:
    """What a second communicator adds on an H200, in MiB."""
    assert table_bytes(channels) == measured * MIB


def test_a_communicator_of_one_rank_is_the_measured_one() -> None:
    """Streams, 100 MiB of library, and tables for 64 channels: 558 MiB; 560 in most runs."""
    alone = STREAMS_BYTES + 100 * MIB + group_bytes(ALONE, H100, sums=True)
    assert 0 <= NCCL_BYTES - alone <= 2 * MIB


def test_a_connection_is_what_nccl_logs() -> None:
    """10,485,760 bytes at the receiver and 2,097,152 at the sender (NVIDIA/nccl issue 1685)."""
    assert PEER_BYTES == 10_485_760 + 2_097_152
    assert NET_BYTES == 2 * 10_485_760


def test_all_to_all_on_a_node_is_what_was_reported() -> None:
    """NVIDIA/nccl issue 1685: 3.28 GB with the first all_to_all on eight H100s."""
    first = STREAMS_BYTES + LIBRARY_BYTES + SEND_BYTES + pairs_bytes(NODE, 7, H100)
    assert first / GIB == pytest.approx(3.28, rel=0.03)


def test_a_world_group_on_a_node_is_what_was_reported() -> None:
    """Pith-Train's memory estimator: 0.39 GiB for a world group on H100s, before any ring."""
    rings = 24 * PEER_BYTES
    total = STREAMS_BYTES + 100 * MIB + group_bytes(NODE, H100, sums=False) - rings
    assert total / GIB == pytest.approx(0.39, rel=0.01)


def test_sums_in_the_switch_need_a_buffer_for_each_rank() -> None:
    """32 MiB for each rank on Hopper, from three ranks on; Ampere's switch does not sum."""
    assert group_bytes(NODE, H100, sums=True) - group_bytes(NODE, H100, sums=False) == 256 * MIB
    pair = Communicator(2, 2)
    assert group_bytes(pair, H100, sums=True) == group_bytes(pair, H100, sums=False)
    assert group_bytes(NODE, "8.0", sums=True) == group_bytes(NODE, "8.0", sums=False)


def test_gpus_without_nvlink_have_their_buffers_on_the_host() -> None:
    """Two channels, and only their tables on the GPU."""
    assert num_channels(NODE, nvlink=False) == 2
    assert group_bytes(NODE, "8.9", sums=True) == table_bytes(2)


def test_groups_follow_the_order_of_ranks() -> None:
    """tp and dp inside a node of eight, stages on different nodes."""
    mesh = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "data_parallel_size": 4}
    run = resolve(read(small_run("megatron_lm", parallelism=mesh, gpus=16)).file).run
    assert communicators(run) == {
        "tp": Communicator(2, 2),
        "dp": Communicator(4, 4),
        "pp": Communicator(2, 1),
    }


def test_pairs_over_nodes_share_their_buffers() -> None:
    """Sending through the network takes one buffer in each direction, for any number of peers."""
    far = Communicator(4, 1)
    assert pairs_bytes(far, 1, H100) == pairs_bytes(far, 3, H100)
    assert pairs_bytes(NODE, 7, H100) - pairs_bytes(NODE, 6, H100) == 32 * PEER_BYTES


MIXTRAL = {**SMALL_LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    ("mesh", "mib"),
    [
        ({"tensor_parallel_size": 2, "sequence_parallel": True}, 286 + 70),
        ({"pipeline_parallel_size": 2}, 286 + 58 + 70),
        ({"expert_parallel_size": 2}, 286 + 58 + 70),
    ],
)
def test_the_first_send_loads_more_kernels(mesh: dict[str, Any], mib: int) -> None:
    """58 MiB where stages or experts exchange; sums and gathers alone do not load them."""
    config = small_run("megatron_lm", model={"config": MIXTRAL}, parallelism=mesh)
    run = resolve(read(config).file).run
    parts = {name: size for name, size, _ in nccl(run, streams=False)}
    assert parts["NCCL library"] == mib * MIB


def test_streams_that_are_counted_elsewhere_are_not_nccls() -> None:
    """70 MiB less."""
    run = resolve(read(small_run(gpus=8)).file).run
    sizes = [{n: s for n, s, _ in nccl(run, streams=bool(on))}["NCCL library"] for on in (0, 1)]
    assert sizes == [356 * MIB, 286 * MIB]


def test_one_gpu_has_no_nccl() -> None:
    """No axis has several ranks."""
    assert list(nccl(resolve(read(small_run(gpus=1)).file).run, streams=False)) == []


def test_pipeline_neighbours_are_two_at_most() -> None:
    """4 stages on one node: 2 + 3 x 32 pages of tables, 32 channels of 12 MiB to each neighbour."""
    mesh = {"pipeline_parallel_size": 4, "data_parallel_size": 1}
    run = resolve(read(small_run("megatron_lm", gpus=4, parallelism=mesh)).file).run
    assert communicators_bytes(run) == (2 * (2 + 3 * 32) + 2 * 32 * 12) * MIB


def test_experts_exchange_with_all_others() -> None:
    """4 ranks of experts on a node: three peers; dp's 24 channels ring and sum in the switch."""
    mesh = {"expert_parallel_size": 4, "data_parallel_size": 4}
    config = small_run("megatron_lm", 4, model={"config": MIXTRAL}, parallelism=mesh)
    pairs = 2 * (2 + 3 * 32) + 3 * 32 * 12
    ring = 2 * (2 + 3 * 32) + 24 * 12
    switch = 2 * (1 + 16) + 16 * 2 * 8 * 4 // 8
    assert communicators_bytes(resolve(read(config).file).run) == (pairs + ring + switch) * MIB


def test_pairs_over_nodes_have_two_channels_to_near_ranks() -> None:
    """16 ranks, 8 on a node: 7 near peers over 2 channels, and 2 shared buffers of 16 x 128 KiB."""
    tables, near = 2 * (2 + 3 * 16), 7 * 2 * 12
    shared = 2 * 16 * 16 * 128 // 1024
    assert pairs_bytes(Communicator(16, 8), 15, H100) == (tables + near + shared) * MIB


def test_zero_3_and_hybrid_sharding_have_two_communicators() -> None:
    """A copy of the default group; two mesh axes."""
    plain = communicators_bytes(resolve(read(small_run("fsdp")).file).run)
    for engine in (
        small_run("deepspeed", engine={"zero_stage": 3}),
        small_run("fsdp", engine={"sharding_strategy": "hybrid_shard"}),
    ):
        found = communicators_bytes(resolve(read(engine).file).run)
        sums = engine["engine"]["type"] == "fsdp"
        assert found == 2 * (plain + (16 * 2 * 8 * 8 // 8 * MIB if sums else 0))
