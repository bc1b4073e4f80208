"""The machine of a run: what is measured, what is scaled, and how collectives grow."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.catalog.curve_files import curve
from gpu_mem_calculator.estimates.machine import NETWORK_SHARE, machine_of
from gpu_mem_calculator.runfile.config import GPUConfig
from gpu_mem_calculator.runfile.resolve.hardware import find_hardware
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.timing.curves.attention import attention_seconds
from gpu_mem_calculator.timing.curves.collectives import RINGS, collective_seconds
from gpu_mem_calculator.timing.curves.matmul import grouped_matmul_seconds, matmul_seconds

from .test_lookups import MB, machine


@pytest.mark.parametrize(
    ("card", "like"),
    [
        ("h200", ""),
        ("rtx-4090", "L40S"),
        ("rtx-5090", "RTX PRO 6000"),
        ("v100-32gb-sxm", "A100"),
        ("a800-80gb-sxm", "A100"),
        ("h20-96gb-sxm", "H100"),
        ("mi300x", "H200"),
        ("tpu-v5p", "A100"),
    ],
)
def test_a_card_without_curves_says_whose_it_has(card: str, like: str) -> None:
    """And stays below its own peak."""
    one = machine(card, 1)
    whose = [note for note in one.assumed if note.startswith("the speed of")]
    assert bool(whose) == bool(like)
    assert all(like in note for note in whose)
    for dtype in ("bf16", "fp16", "fp8", "tf32", "fp32"):
        rate = 2 * 4096**3 / matmul_seconds(one, 4096, 4096, 4096, dtype)
        assert 0.2 * one.peak[dtype] < rate < one.peak[dtype]


def test_a_slower_link_scales_the_bytes_alone() -> None:
    """An A800 is an A100 whose NVLink has two thirds of the rate."""
    a100, a800 = machine("a100-80gb-sxm"), machine("a800-80gb-sxm")
    small, large = 512, 512 * MB
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        times = [
            collective_seconds(one, kind, size, 8)
            for one in (a100, a800)
            for size in (small, large)
        ]
        assert times[2] == pytest.approx(times[0])
        assert times[3] == pytest.approx(1.5 * times[1], rel=0.01)


def test_a_machine_needs_a_card() -> None:
    """A size alone says nothing about speed."""
    with pytest.raises(InputError, match=r"set hardware\.gpu"):
        machine_of(find_hardware(GPUConfig(gpu_memory_gb=80, num_gpus=8), None))


def test_the_network_is_named_or_assumed() -> None:
    """A link within a node replaces the card's own."""
    config = find_hardware(GPUConfig(gpu="h200", num_gpus=16), None)
    assert "InfiniBand NDR" in machine_of(config).assumed[0]
    named = machine_of(config, "ethernet-25g")
    assert named.assumed == ()
    assert named.between.port == 3.125e9
    assert named.between.bytes_per_second == 3.125e9 / 8
    assert machine_of(config, "pcie5-x16").within.bytes_per_second == 63e9


def test_a_group_uses_the_ports_of_its_gpus() -> None:
    """Eight GPUs of each node have eight ports; one GPU of each node has one."""
    one = machine("h200", 64)
    size = 1 << 32
    whole = collective_seconds(one, "all_gather", size, 64, 1)
    single = collective_seconds(one, "all_gather", size, 8, 8)
    rate = NETWORK_SHARE * 50e9
    assert single == pytest.approx(size * 7 / 8 / rate, rel=0.01)
    assert whole == pytest.approx(size * 63 / 64 / (8 * rate), rel=0.05)


def test_one_rank_takes_no_time_and_more_take_longer() -> None:
    """Also from one node to several."""
    one = machine("h200", 1024)
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        assert collective_seconds(one, kind, 8 * MB, 1) == 0
        for size in (MB, 64 * MB, 1024 * MB):
            times = [collective_seconds(one, kind, size, n) for n in (2, 8, 16, 64, 1024)]
            assert times[1:] == sorted(times[1:])


def test_a_rack_of_one_nvlink_domain_needs_no_network() -> None:
    """GB200 NVL72: 64 ranks on NVLink, although a node has 4 GPUs."""
    one = machine("gb200", 128, gpus_per_node=4)
    inside = collective_seconds(one, "all_gather", 1 << 30, 64)
    outside = collective_seconds(one, "all_gather", 1 << 30, 128)
    assert (1 << 30) / inside > 300e9
    assert outside > inside


def test_a_stage_sends_to_the_next() -> None:
    """Within a node over NVLink, to another node through one port."""
    one = machine("h200", 16)
    near, far = (collective_seconds(one, "send", 256 * MB, 2, stride) for stride in (1, 8))
    assert 256 * MB / near > 200e9
    assert 256 * MB / far == pytest.approx(NETWORK_SHARE * 50e9, rel=0.01)


def test_a_grouped_product_pays_for_whole_tiles_and_every_weight() -> None:
    """Few tokens for each of many experts: the weights are read."""
    one = machine("h200", 1)
    full = grouped_matmul_seconds(one, 1024, 2048, 4096, 8)
    assert full == matmul_seconds(one, 8192, 2048, 4096)
    assert grouped_matmul_seconds(one, 1000, 2048, 4096, 8) == full
    few = grouped_matmul_seconds(one, 1, 2048, 4096, 256)
    assert few >= 256 * 2048 * 4096 * 2 / one.memory_bytes_per_second


def test_a_run_files_interconnect_is_the_network() -> None:
    """Without an argument of its own."""
    config = find_hardware(GPUConfig(gpu="h200", num_gpus=16, interconnect="roce-400g"), None)
    assert machine_of(config).between.title.startswith("RoCE v2, 400")
    assert machine_of(config, "ethernet-25g").between.port == 3.125e9


@pytest.mark.parametrize(
    ("mib", "microseconds"),
    [(16, 203.0), (32, 298.5), (64, 467.9), (128, 1108), (256, 2055.4), (512, 3218.6)],
)
def test_two_nodes_are_as_in_a_public_run(mib: int, microseconds: float) -> None:
    """16 H20, eight ports of 400 Gb/s a node: NVIDIA/nccl issue 1244."""
    seconds = collective_seconds(machine("h20-96gb-sxm", 16), "all_reduce", mib * MB, 16)
    assert 1e6 * seconds == pytest.approx(microseconds, rel=0.2)


@pytest.mark.parametrize("keys", [512, 2048, 8192])
def test_kernels_of_torch_are_as_measured(keys: int) -> None:
    """One sequence, 32 heads of 128, 8 KV heads, on an H200; see the file of the kernels."""
    milliseconds = {512: (0.0129, 0.0472), 2048: (0.0801, 0.2712), 8192: (0.885, 2.593)}[keys]
    same = {"batch": 1, "heads": 32, "head_dim": 128, "queries": keys, "keys": keys}
    one = machine("h200", 1)
    for measured, backward in zip(milliseconds, (False, True), strict=True):
        seconds = attention_seconds(one, **same, causal=True, backward=backward)
        assert 1e3 * seconds == pytest.approx(measured, rel=0.25)


def test_flash_attention_2_is_slower_on_hopper_alone() -> None:
    """The curve of Hopper is that of FlashAttention-3, the A100's is that of FlashAttention-2."""
    same = {"batch": 1, "heads": 32, "head_dim": 128, "queries": 4096, "keys": 4096}
    ratios = {}
    for card in ("h100-80gb-sxm", "a100-80gb-sxm"):
        flash, sdpa = (
            attention_seconds(machine(card, 1), **same, causal=True, kernel=name)
            for name in ("flash", "sdpa")
        )
        ratios[card] = flash / sdpa
    assert ratios == {"h100-80gb-sxm": pytest.approx(1.95, rel=0.05), "a100-80gb-sxm": 1.0}


def test_rows_of_an_odd_number_of_elements_are_slow() -> None:
    """GPT-2's vocabulary on an H200: 1.68, 1.14 and 1.11 ms for 2,048 tokens."""
    one = machine("h200", 1)
    tokens, outputs, inputs = 2048, 50257, 768
    forward = matmul_seconds(one, tokens, outputs, inputs)
    by_input = matmul_seconds(one, tokens, inputs, outputs, layout="input")
    by_weight = matmul_seconds(one, outputs, inputs, tokens, layout="weight")
    assert [forward, by_input, by_weight] == pytest.approx([1.676e-3, 1.138e-3, 1.106e-3], rel=0.05)
    assert matmul_seconds(one, tokens, outputs + 7, inputs) < 0.2 * forward
    assert matmul_seconds(one, tokens + 1, 4096, 4096) < 1.1 * matmul_seconds(
        one, tokens, 4096, 4096
    )
    assert matmul_seconds(one, 4096, 4096, tokens + 1, layout="weight") < 2e-4


def test_gpus_share_the_ports_of_their_node() -> None:
    """Ethernet has one port a node, other networks one a GPU; the run file may say otherwise."""
    rates = {
        (link, nics): machine("h200", interconnect=link, nics_per_node=nics).between
        for link in ("ethernet-10g", "roce-100g")
        for nics in (None, 1, 8, 16)
    }
    assert rates["ethernet-10g", None].bytes_per_second == 1.25e9 / 8
    assert rates["ethernet-10g", 8].bytes_per_second == 1.25e9
    assert rates["roce-100g", None].bytes_per_second == 12.5e9
    assert rates["roce-100g", 1].bytes_per_second == 12.5e9 / 8
    assert rates["roce-100g", 1].port == 12.5e9
    assert rates["roce-100g", 16].bytes_per_second == rates["roce-100g", 16].port == 25e9


def test_a_link_within_a_node_changes_its_collectives() -> None:
    """PCI Express instead of NVLink; the curve is that of its own kind of link."""
    nvlink, pcie = (machine("h100-80gb-sxm", 8, interconnect=one) for one in (None, "pcie5-x16"))
    other = machine("rtx-pro-6000-blackwell-server", 8)
    slow = collective_seconds(pcie, "all_reduce", 512 * MB, 8)
    assert slow > 8 * collective_seconds(nvlink, "all_reduce", 512 * MB, 8)
    assert slow == collective_seconds(other, "all_reduce", 512 * MB, 8)


def test_the_curve_of_pci_express_holds_for_another_card() -> None:
    """Two L40S were measured, too: rings of large tensors within a quarter of the scaled curve."""
    measured = curve("collectives", "l40s")["curves"]
    for kind, values in ((kind, measured[kind]) for kind in RINGS):
        scaled = collective_seconds(machine("l40s", 8), kind, 512 * MB, 2)
        assert scaled == pytest.approx(1e-6 * values[-1], rel=0.25)


def test_a_window_is_never_negative_work() -> None:
    """Past a window each query attends to as many keys: w s - w^2 / 2 pairs."""
    keys = {"batch": 1, "heads": 64, "head_dim": 128, "causal": True}
    one = machine("h100-80gb-sxm", 8)
    long, longer = (
        attention_seconds(one, queries=length, keys=4096, **keys) for length in (65536, 131072)
    )
    work = [4096 * length - 4096**2 / 2 for length in (65536, 131072)]
    assert longer / long == pytest.approx(work[1] / work[0])
    whole = attention_seconds(one, queries=131072, keys=131072, **keys)
    assert 0 < longer < whole
