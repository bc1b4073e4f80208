"""The machine of a run: rates from the catalogue, measured curves, and what had to be assumed."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from typing import Any

from .. import catalog
from ..catalog.cards import find_card
from ..catalog.curve_files import cards, curve
from ..runfile.resolve.hardware import Hardware, ports_per_gpu
from ..runfile.text.errors import InputError
from ..timing.curves.grid import Axis, Grid
from ..timing.curves.machine import AttentionKernel, Link, Machine, MatmulCurve
from ..timing.curves.matmul import BYTES

MICRO = 1e-6
# Part of the network's line rate that large collectives reach: 0.78 to 0.86 with 16 H20 on two
# nodes (NVIDIA/nccl issue 1244), 0.85 with 24 A100 on three (NVIDIA/nccl-tests issue 119), 0.92 to
# 0.96 of a port as NVIDIA expects it (nccl-tests issue 290), 0.50 with 256 H100 on their first
# all-gather (nccl issue 1218).
NETWORK_SHARE = 0.8
PCIE = "pcie5-x16"  # of a card that no link joins to others, which a run has one of
# The dtype whose peak and whose curve one has that has none of its own. Two are other names of the
# same peak; the curves of the others are scaled.
LIKE = {**dict.fromkeys(("fp16", "fp32", "tf32", "fp8", "nvfp4"), "bf16"), "fp8_block": "fp8"}
SAME = ("fp16", "fp8_block")


def machine_of(hardware: Hardware, interconnect: str | None = None) -> Machine:
    """The machine that a run's hardware is; `interconnect` replaces the link that it names."""
    if not hardware.card:
        raise InputError("hardware.gpu is not given, so its speed is not known; set hardware.gpu")
    link = interconnect or hardware.interconnect
    return _machine(hardware.card, hardware.gpus_per_node, link, hardware.nics_per_node)


@lru_cache(maxsize=64)
def _machine(
    title: str, gpus_per_node: int, interconnect: str | None, nics_per_node: int | None
) -> Machine:
    row = find_card(title)
    if row is None or "tflops" not in row or not row["bandwidth_gb_per_s"]:
        raise InputError(f"hardware.gpu: the speed of {title} is not known; set another GPU")
    name = _nearest(row)
    other = _row(name)
    near, far, assumed = _links(row, interconnect)
    ports = ports_per_gpu(far, nics_per_node, gpus_per_node)
    files = {kind: curve(kind, name) for kind in ("matmul", "attention")}
    wired = _wired(name, near)
    files["collectives"] = curve("collectives", wired)
    if name != row["name"]:
        rule = "scaled by peak FLOP/s, memory bandwidth and link"
        assumed = (f"the speed of {title} is that of {other['title']}, {rule}", *assumed)
    domain = max(gpus_per_node, row.get("domain_gpus", 1))
    return Machine(
        card=title,
        capability=row.get("compute_capability", ""),
        peak=_peaks(row),
        memory_bytes_per_second=1e9 * row["bandwidth_gb_per_s"],
        multiprocessors=row.get("multiprocessors", 0),
        gpus_per_node=gpus_per_node,
        domain=domain,
        within=_link(near),
        between=_link(far, ports),
        network_share=NETWORK_SHARE,
        matmul=MatmulCurves(files["matmul"], row, other),
        attention=_attention(files["attention"], row, other),
        attention_kernels=_attention_kernels(row.get("compute_capability", "")),
        collectives=_collectives(files["collectives"], domain, near, own_link(_row(wired))),
        sources=tuple(file["source"] for file in files.values()),
        assumed=assumed,
    )


def _nearest(row: catalog.Row) -> str:
    """The card with curves that is nearest: the same chip, generation, vendor and kind of link."""

    def distance(name: str) -> tuple[bool, bool, bool, bool, float]:
        other = _row(name)
        keys = ("compute_capability", "architecture", "vendor")
        unlike = [row.get(key) != other.get(key) for key in keys]
        unlike.append(_is_fast(row) != _is_fast(other))
        ratio = _ratio(row, other, "bf16")
        bandwidth = row["bandwidth_gb_per_s"] / other["bandwidth_gb_per_s"]
        return (*unlike, max(ratio, 1 / ratio) * max(bandwidth, 1 / bandwidth))

    return row["name"] if row["name"] in cards("matmul") else min(cards("matmul"), key=distance)


def _is_fast(row: catalog.Row) -> bool:
    """Whether a card has a link of its own to the others, beyond PCI Express and networks."""
    return _is_fast_link(own_link(row))


def _is_fast_link(link: catalog.Row) -> bool:
    return link["scope"] == "gpu" and not link["name"].startswith("pcie")


def _wired(name: str, link: catalog.Row) -> str:
    """The card whose curves of collectives a link follows: those of the same kind of link, with
    most ranks and the nearest rate; of a card with a switch its own ones. Over PCI Express a
    collective reaches another share of the rate than over NVLink, whatever the chip, and a smaller
    one the more ranks there are, so a curve of two ranks is not extended.
    """
    fast = _is_fast_link(link)

    def distance(other: str) -> tuple[bool, int, float]:
        own = own_link(_row(other))
        ranks, _ = curve("collectives", other)["axes"].values()
        ratio = link["bandwidth_gb_per_s"] / own["bandwidth_gb_per_s"]
        return _is_fast(_row(other)) != fast, -len(ranks), max(ratio, 1 / ratio)

    if fast and own_link(_row(name))["name"] == link["name"]:
        return name
    return min(cards("collectives"), key=distance)


def _row(name: str) -> catalog.Row:
    """A card of the catalogue that has curves."""
    return catalog.named("gpus", name) or {}


def _peaks(row: catalog.Row) -> dict[str, float]:
    peaks = {name: 1e12 * rate for name, rate in row["tflops"].items()}
    # Cards before bf16 compute in fp16, or in fp32.
    slow = peaks.get("fp16") or peaks.get("fp32") or peaks["bf16"]
    peaks.setdefault("bf16", slow)
    for name, like in {**LIKE, "tf32": "fp32"}.items():
        peaks.setdefault(name, peaks[like])
    return peaks


def _ratio(row: catalog.Row, other: catalog.Row, dtype: str) -> float:
    """How much faster a card is than another one by its data sheet."""
    return _peaks(row)[dtype] / _peaks(other)[dtype]


def _links(
    row: catalog.Row, interconnect: str | None
) -> tuple[catalog.Row, catalog.Row, tuple[str, ...]]:
    """The link of a card within a node, the network between nodes, and what was assumed."""
    own = own_link(row)
    named = catalog.find("links", interconnect) if interconnect else None
    if named is not None and named["scope"] == "gpu":
        own, named = named, None
    assumed: tuple[str, ...] = ()
    if named is None:
        named = catalog.find("links", own_link(row)["network"])
        assumed = (f"the network between nodes is {named['title']}",) if named else ()
    assert named is not None
    return own, named, assumed


def own_link(row: catalog.Row) -> catalog.Row:
    """The link that a card has to the others of its node."""
    found = catalog.find("links", row.get("link") or PCIE)
    assert found is not None
    return found


def _link(row: catalog.Row, ports: float = 1.0) -> Link:
    """A link of which each GPU has some ports."""
    port = 1e9 * row["bandwidth_gb_per_s"]
    return Link(
        title=row["title"],
        bytes_per_second=port * ports,
        seconds=MICRO * row["latency_us"],
        port=max(port, port * ports),
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
            grid=self._grid(dtype).rising(),  # more rows are never faster: where they are, by noise
            tile=tuple(tile) if tile else None,
            multiprocessors=self._other.get("multiprocessors", 0),  # of which the waves are
        )
        return self[dtype]

    def _grid(self, dtype: str) -> Grid:
        one = self._file["curves"].get(dtype)
        if one is None:
            known = LIKE[dtype]
            grid = self[known].grid
            same = _peaks(self._row)[dtype] == _peaks(self._row)[known] and dtype in SAME
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
    file: dict[str, Any], domain: int, link: catalog.Row, measured: catalog.Row
) -> dict[str, Grid]:
    """Seconds by kind, for one rank (none) to the GPUs of a domain, over a link; `measured` is the
    link of the curve.
    """
    ranks, sizes = file["axes"].values()
    speed = link["bandwidth_gb_per_s"] / measured["bandwidth_gb_per_s"]
    more = [count for count in (8, 16, 32, 72) if ranks[-1] < count <= domain]
    axes = [Axis([1, *ranks, *more], continues=True), Axis(sizes, continues=True)]
    grids = {}
    for kind, values in file["curves"].items():
        rows = [values[at : at + len(sizes)] for at in range(0, len(values), len(sizes))]
        # More bytes are never faster: where a measured line falls, it is by noise or by a change of
        # NCCL's protocol, and a slower link would make a fall negative seconds.
        lines = [list(accumulate(row, max)) for row in rows]
        scaled = [[line[0] + (v - line[0]) / speed for v in line] for line in lines]
        wider = [_wider(scaled[-1], ranks[-1], count) for count in more]
        flat = [0.0] * len(sizes) + [MICRO * v for line in (*scaled, *wider) for v in line]
        grids[kind] = Grid(axes, flat)
    return grids


def _wider(line: list[float], ranks: int, more: int) -> list[float]:
    """The curve of more ranks on the same switch: hops grow with n - 1, bytes with (n - 1) / n."""
    hops, part = (more - 1) / (ranks - 1), (1 - 1 / more) / (1 - 1 / ranks)
    return [line[0] * hops + (value - line[0]) * part for value in line]
