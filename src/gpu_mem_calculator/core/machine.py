"""The machine of a run: rates from the catalogue, measured curves, and what had to be assumed."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from .. import catalog
from ..catalog.cards import find_card
from ..catalog.curve_files import cards, curve
from ..timing.curves.grid import Axis, Grid
from ..timing.curves.machine import AttentionKernel, Link, Machine
from ..timing.curves.matmul import BYTES
from ..timing.curves.matmul_curve import MatmulCurve
from .errors import InputError
from .hardware import Hardware

MICRO = 1e-6
# GPUs of one NVLink domain, where it is larger than a node. GB200 and GB300 NVL72 data sheets.
DOMAINS = {"gb200-186gb": 72, "gb300-288gb": 72}
# Between nodes, where a run file names no interconnect: what DGX systems of that NVLink have, a
# port for each GPU (DGX-2, A100, H100 and B200 data sheets).
NETWORKS = {
    "nvlink2": "infiniband-edr",
    "nvlink3": "infiniband-hdr",
    "nvlink4": "infiniband-ndr",
    "nvlink5": "infiniband-ndr",
}
OTHER_NETWORK = "infiniband-hdr"
# Part of the network's line rate that large collectives reach: 0.78 to 0.86 with 16 H20 on two
# nodes (NVIDIA/nccl issue 1244), 0.85 with 24 A100 on three (NVIDIA/nccl-tests issue 119), 0.92 to
# 0.96 of a port as NVIDIA expects it (nccl-tests issue 290), 0.50 with 256 H100 on their first
# all-gather (nccl issue 1218).
NETWORK_SHARE = 0.8
LIKE = {"fp16": "bf16", "fp8_block": "fp8"}  # another name of the same peak


def machine_of(hardware: Hardware, interconnect: str | None = None) -> Machine:
    """The machine that a run's hardware is; `interconnect` replaces the link that it names."""
    if not hardware.card:
        raise InputError("hardware.gpu is not given, so its speed is not known; set hardware.gpu")
    return _machine(hardware.card, hardware.gpus_per_node, interconnect or hardware.interconnect)


@lru_cache(maxsize=64)
def _machine(title: str, gpus_per_node: int, interconnect: str | None) -> Machine:
    row = find_card(title)
    if row is None or "tflops" not in row or not row["bandwidth_gb_per_s"]:
        raise InputError(f"hardware.gpu: the speed of {title} is not known; set another GPU")
    name = _nearest(row)
    other = catalog.named("gpus", name) or {}
    within, between, assumed = _links(row, interconnect)
    files = {kind: curve(kind, name) for kind in ("matmul", "attention", "collectives")}
    if name != row["name"]:
        rule = "scaled by peak FLOP/s, memory bandwidth and link"
        assumed = (f"the speed of {title} is that of {other['title']}, {rule}", *assumed)
    domain = max(gpus_per_node, DOMAINS.get(row["name"], 1))
    return Machine(
        card=title,
        capability=row.get("compute_capability", ""),
        peak=_peaks(row),
        memory_bytes_per_second=1e9 * row["bandwidth_gb_per_s"],
        multiprocessors=row.get("multiprocessors", 0),
        gpus_per_node=gpus_per_node,
        domain=domain,
        within=within,
        between=between,
        network_share=NETWORK_SHARE,
        matmul=MatmulCurves(files["matmul"], row, other),
        attention=_attention(files["attention"], row, other),
        attention_kernels=_attention_kernels(row.get("compute_capability", "")),
        collectives=_collectives(files["collectives"], domain, row, other),
        sources=tuple(file["source"] for file in files.values()),
        assumed=assumed,
    )


def _nearest(row: catalog.Row) -> str:
    """The card with curves that is nearest: the same chip, generation, vendor and kind of link."""

    def distance(name: str) -> tuple[bool, bool, bool, bool, float]:
        other = catalog.named("gpus", name) or {}
        keys = ("compute_capability", "architecture", "vendor")
        unlike = [row.get(key) != other.get(key) for key in keys]
        unlike.append(_is_fast(row) != _is_fast(other))
        ratio = _ratio(row, other, "bf16")
        bandwidth = row["bandwidth_gb_per_s"] / other["bandwidth_gb_per_s"]
        return (*unlike, max(ratio, 1 / ratio) * max(bandwidth, 1 / bandwidth))

    return row["name"] if row["name"] in cards("matmul") else min(cards("matmul"), key=distance)


def _is_fast(row: catalog.Row) -> bool:
    """Whether a card has a link of its own to the others, beyond PCI Express."""
    return not str(row.get("link", "pcie")).startswith("pcie")


def _peaks(row: catalog.Row) -> dict[str, float]:
    peaks = {name: 1e12 * rate for name, rate in row["tflops"].items()}
    # Cards before bf16 compute in fp16, or in fp32.
    slow = peaks.get("fp16") or peaks.get("fp32") or peaks["bf16"]
    for name in ("bf16", "fp16", "fp32", "tf32", "fp8", "fp8_block", "nvfp4"):
        like = {"tf32": "fp32", "fp8_block": "fp8"}.get(name, "bf16")
        peaks.setdefault(name, peaks.get(like, slow))
    return peaks


def _ratio(row: catalog.Row, other: catalog.Row, dtype: str) -> float:
    """How much faster a card is than another one by its data sheet."""
    return _peaks(row)[dtype] / _peaks(other)[dtype]


def _links(row: catalog.Row, interconnect: str | None) -> tuple[Link, Link, tuple[str, ...]]:
    """The link of a card within a node, the network between nodes, and what was assumed."""
    own = catalog.find("links", row.get("link") or "pcie5-x16")
    named = catalog.find("links", interconnect) if interconnect else None
    if named is not None and named["scope"] == "gpu":
        own, named = named, None
    assumed: tuple[str, ...] = ()
    if named is None:
        named = catalog.find("links", NETWORKS.get(row.get("link", ""), OTHER_NETWORK))
        assumed = (f"the network between nodes is {named['title']}",) if named else ()
    return _link(own), _link(named), assumed


def _link(row: catalog.Row | None) -> Link:
    assert row is not None
    return Link(
        title=row["title"],
        bytes_per_second=1e9 * row["bandwidth_gb_per_s"],
        seconds=MICRO * row["latency_us"],
    )


class MatmulCurves(dict[str, MatmulCurve]):
    """Curves by dtype, each built when it is first looked up: measured, or scaled by rooflines."""

    def __init__(self, file: dict[str, Any], row: catalog.Row, other: catalog.Row) -> None:
        super().__init__()
        self._file, self._row, self._other = file, row, other
        self._axes = [Axis(points, continues=True) for points in file["axes"].values()]

    def __missing__(self, dtype: str) -> MatmulCurve:
        tile = self._file["tile"]
        self[dtype] = MatmulCurve(
            grid=self._grid(dtype),
            tile=tuple(tile) if tile else None,
            multiprocessors=self._row.get("multiprocessors")
            or self._other.get("multiprocessors", 0),
        )
        return self[dtype]

    def _grid(self, dtype: str) -> Grid:
        one = self._file["curves"].get(dtype)
        if one is None:
            known = LIKE.get(dtype, "bf16")
            grid = self[known].grid
            same = _peaks(self._row)[dtype] == _peaks(self._row)[known] and dtype in LIKE
            return grid if same else _scaled(grid, (self._row, dtype), (self._row, known))
        grid = Grid(self._axes, [MICRO * value for value in one["values"]])
        if self._row["name"] == self._other["name"]:
            return grid
        return _scaled(grid, (self._row, dtype), (self._other, dtype))


def _scaled(grid: Grid, to: tuple[catalog.Row, str], of: tuple[catalog.Row, str]) -> Grid:
    """The grid of a card and dtype from that of another, by the ratio of their rooflines."""
    new, old = _rates(*to), _rates(*of)

    def change(value: float, m: float, n: float, k: float) -> float:
        flops, factors, result = 2 * m * n * k, m * k + k * n, 2 * m * n
        needs = [max(flops / peak, (size * factors + result) / rate) for peak, rate, size in pair]
        return value * needs[0] / needs[1]

    pair = (new, old)
    return grid.changed(change)


def _rates(row: catalog.Row, dtype: str) -> tuple[float, float, float]:
    """Peak FLOP/s, memory bandwidth, and bytes of an element of the factors."""
    return _peaks(row)[dtype], 1e9 * row["bandwidth_gb_per_s"], BYTES[dtype]


def _attention(file: dict[str, Any], row: catalog.Row, other: catalog.Row) -> Grid:
    """FLOP/s, scaled by peak."""
    axes = [Axis(points, continues=False) for points in file["axes"].values()]
    rate = 1e12 * (_ratio(row, other, "bf16") if row["name"] != other["name"] else 1.0)
    return Grid(axes, [rate * value for value in file["values"]])


@lru_cache(maxsize=16)
def _attention_kernels(capability: str) -> dict[str, AttentionKernel]:
    """How torch's kernels differ from the curve; measured on an H200.

    cuDNN's is torch's choice on Hopper and later datacenter chips, FlashAttention-2 elsewhere. The
    curve of other chips is FlashAttention-2's: there both names mean it, and its forward differs
    from the curve as cuDNN's does from FlashAttention-3's, by what a server adds at few keys.
    """
    file = curve("attention_kernels", "h200-141gb-sxm")
    axes = [Axis(points, continues=False) for points in file["axes"].values()]
    grids = {
        name: {part: Grid(axes, values) for part, values in one.items()}
        for name, one in file["kernels"].items()
    }
    cudnn, flash = (AttentionKernel(**grids[name]) for name in ("cudnn", "flash"))
    if capability.startswith(("9.", "10.")):
        return {"sdpa": cudnn, "flash": flash}
    same = AttentionKernel(forward=cudnn.forward, backward=flash.backward)
    return {"sdpa": same, "flash": same}


def _collectives(
    file: dict[str, Any], domain: int, row: catalog.Row, other: catalog.Row
) -> dict[str, Grid]:
    """Seconds by kind, for one rank (none) to the GPUs of a domain."""
    ranks, sizes = file["axes"].values()
    speed = 1.0
    if row["name"] != other["name"]:
        links = [
            catalog.find("links", one.get("link") or "pcie5-x16") or {} for one in (row, other)
        ]
        speed = links[0]["bandwidth_gb_per_s"] / links[1]["bandwidth_gb_per_s"]
    more = [count for count in (8, 16, 32, 72) if ranks[-1] < count <= domain]
    axes = [Axis([1, *ranks, *more], continues=True), Axis(sizes, continues=True)]
    grids = {}
    for kind, values in file["curves"].items():
        lines = [values[at : at + len(sizes)] for at in range(0, len(values), len(sizes))]
        scaled = [[line[0] + (v - line[0]) / speed for v in line] for line in lines]
        wider = [_wider(scaled[-1], ranks[-1], count) for count in more]
        flat = [0.0] * len(sizes) + [MICRO * v for line in (*scaled, *wider) for v in line]
        grids[kind] = Grid(axes, flat)
    return grids


def _wider(line: list[float], ranks: int, more: int) -> list[float]:
    """The curve of more ranks on the same switch: hops grow with n - 1, bytes with (n - 1) / n."""
    hops, part = (more - 1) / (ranks - 1), (1 - 1 / more) / (1 - 1 / ranks)
    return [line[0] * hops + (value - line[0]) * part for value in line]
