"""The GPUs of a run: which card, how many, on how many nodes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ... import catalog
from ...ledger.units import GIB, gib
from ...run.cuda.runtimes import CUDA, runtime_of
from ...run.limits import Limit
from ..config import GPUConfig
from ..text.errors import InputError, nearest
from .card_name import named_card

if TYPE_CHECKING:
    from .unified import SharedMemory
    from .windows import SpillingHost

DEFAULT_MEMORY_GB = 80.0
SAME_CARD = 0.01  # share of a card's memory by which readings of one card differ between drivers
SPILLING = ("windows", "wsl")  # systems on which NVIDIA's driver spills
UNIFIED = "unified"  # the kind of a card that shares its memory with the host
CARDS = ("datacenter", "workstation", "consumer")  # kinds that a memory size alone can mean
# Fields that a `Run` has, too:
OF_RUN = ("gpus_per_node", "num_nodes", "compute_capability", "multiprocessors", "card", "runtime")
DEFAULT_CHIP = ("9.0", 132)  # an H200's, assumed for unknown cards


class Hardware(Struct, frozen=True, kw_only=True):
    """The GPUs of a run.

    - memory_bytes: free for a process on one GPU; used_bytes: what others hold, where it is said
    - card_bytes: the total that the driver reports to a process
    - smi_bytes: the total that nvidia-smi shows
    - card: the title of the card that the section names; "" where it gives a size alone
    - interconnect: the link that the section names; None where it names none
    - nics_per_node: ports to the network, where the section gives them
    - spilling: the host into whose memory the driver puts what finds no room on the card
    - shared: the memory that card and host share; None where the card has its own
    - node_bytes: memory of a node's host; None where nobody says it; node_read_from: where it is
      said
    """

    title: str
    memory_bytes: int
    used_bytes: int
    card_bytes: int
    smi_bytes: int
    num_gpus: int
    gpus_per_node: int
    num_nodes: int
    compute_capability: str
    multiprocessors: int
    card: str = ""
    runtime: str = CUDA
    interconnect: str | None = None
    nics_per_node: int | None = None
    node_bytes: int | None = None
    node_read_from: str = ""
    shared: SharedMemory | None = None
    spilling: SpillingHost | None = None
    assumed: tuple[str, ...] = ()
    named: bool = True  # whether the section says which card it is, or its memory
    counted: bool = True  # whether it, or the mesh, says how many there are

    @property
    def decisive(self) -> tuple[str, ...]:
        """What is assumed of the cards and could turn the verdict."""
        card = () if self.named else (f"an {DEFAULT_MEMORY_GB:g} GB card",)
        return card if self.counted else (*card, f"{self.num_gpus} GPU")

    @property
    def limits(self) -> tuple[Limit, ...]:
        """What is open of the cards' memory."""
        if self.spilling is not None:
            return self.spilling.limits
        return () if self.shared is None else tuple(self.shared.limits(self.memory_bytes))

    @property
    def of_run(self) -> dict[str, Any]:
        """Those that a `Run` has, too."""
        return {name: getattr(self, name) for name in OF_RUN}


def find_hardware(config: GPUConfig, ranks: int | None, *, fast: bool = False) -> Hardware:
    """The GPUs that a hardware section describes; `ranks` is the size of the mesh, if known.

    fast: the answer is in seconds, too (`named_card`)
    """
    found = named_card(config, fast=fast)
    title, total, (capability, multiprocessors), assumed = _card(config, found)
    if config.gpu_memory_bytes is not None:
        total = config.gpu_memory_bytes
    free = total
    if config.available_memory_bytes is not None:
        free = min(total, config.available_memory_bytes)
    used = config.used_memory_bytes or 0
    free = min(free, max(total - used, 1))
    shared = None
    if found is not None and found[0]["kind"] == UNIFIED:
        from .unified import shared_memory

        shared = shared_memory(found[0], config)
        free = min(free, shared.free_bytes)
        used = total - free
    if config.interconnect is not None and catalog.find("links", config.interconnect) is None:
        hint = nearest(config.interconnect, catalog.names("links"))
        raise InputError(f"hardware.interconnect={config.interconnect!r} is not a known link{hint}")
    count = config.num_gpus or ranks
    if count is None:
        count = (config.num_nodes or 1) * (config.gpus_per_node or 1)
    per_node, nodes = _nodes(config, count)
    named = found[0] if found else None
    if named and "link" not in named and count > 1:
        alone = f"no link joins two {named['title']}, so a run has one of them; set num_gpus=1"
        raise InputError(f"hardware.num_gpus={count}: {alone}")
    runtime = runtime_of(named["vendor"], named["architecture"]) if named else CUDA
    spilling = None
    if config.os in SPILLING and shared is None and runtime == CUDA:
        from .windows import spilling_host

        spilling = spilling_host(config, total)
    node_gb = config.node_memory_gb if spilling is None else spilling.node_gb
    return Hardware(
        title=title,
        memory_bytes=free,
        used_bytes=used,
        card_bytes=total,
        smi_bytes=_smi_bytes(config, named, total),
        num_gpus=count,
        gpus_per_node=per_node,
        num_nodes=nodes,
        compute_capability=capability,
        multiprocessors=multiprocessors,
        card=title if named else "",
        runtime=runtime,
        interconnect=config.interconnect,
        nics_per_node=config.nics_per_node,
        node_bytes=shared.free_bytes if shared else None if node_gb is None else int(node_gb * GIB),
        shared=shared,
        spilling=spilling,
        node_read_from=spilling.read_from if spilling else config.node_memory_read_from or "",
        assumed=assumed,
        counted=bool(config.num_gpus or ranks or config.num_nodes or config.gpus_per_node),
        named=bool(named or config.gpu_memory_gb or config.gpu_memory_bytes),
    )


def ports_per_gpu(link: catalog.Row, nics_per_node: int | None, gpus_per_node: int) -> float:
    """Ports of a link between nodes for each GPU: of the node's own number, or the link's."""
    ports = nics_per_node or link.get("nics_per_node") or gpus_per_node
    return float(ports) / gpus_per_node


def _smi_bytes(config: GPUConfig, row: catalog.Row | None, total: int) -> int:
    """The total that nvidia-smi shows, which includes what the driver reserves, if known."""
    if row is None or config.gpu_memory_bytes is not None:
        return total
    return int(row.get("driver_total_bytes", total))


def _chip(row: catalog.Row) -> tuple[str, int]:
    """Compute capability and multiprocessors of a card; an H200's where they are not known."""
    known = "compute_capability" in row and "multiprocessors" in row
    capability = row.get("compute_capability", DEFAULT_CHIP[0])
    return capability, row["multiprocessors"] if known else DEFAULT_CHIP[1]


def _card(
    config: GPUConfig, named: tuple[catalog.Row, tuple[str, ...]] | None
) -> tuple[str, int, tuple[str, int], tuple[str, ...]]:
    if named is not None:
        row, assumed = named
        return row["title"], row["memory_bytes"], _chip(row), assumed
    if config.gpu_memory_gb is None and config.gpu_memory_bytes is not None:
        total, near = config.gpu_memory_bytes, _nearest(config.gpu_memory_bytes)
        title = f"{gib(total)} GiB GPU"
        if near is None:
            least = _smallest(f"{DEFAULT_MEMORY_GB:g}")
            return title, total, _chip(least) if least else DEFAULT_CHIP, ()
        note = f"the chip of {near['title']}, whose memory is nearest"
        return title, total, _chip(near), (note,)
    size = config.gpu_memory_gb or DEFAULT_MEMORY_GB
    assumed = () if config.gpu_memory_gb else (f"hardware.gpu_memory_gb={size:g}",)
    least = _smallest(f"{size:g}")
    if least is None:
        return f"{size:g} GB GPU", int(size * GIB), DEFAULT_CHIP, assumed
    usable = f"{size:g} GB means {gib(least['memory_bytes'])} GiB usable"
    note = f"{usable} ({least['title']}, the smallest of its class)"
    return f"{size:g} GB GPU", least["memory_bytes"], _chip(least), (*assumed, note)


@cache
def _smallest(size: str) -> catalog.Row | None:
    """Of the cards of a size in GB the one with the least memory."""
    rows = (row for row in catalog.rows("gpus") if f"{row['memory_gb']:g}" == size)
    known = (row for row in rows if row["memory_bytes_known"] and row["kind"] in CARDS)
    return min(known, key=lambda row: int(row["memory_bytes"]), default=None)


def _nearest(num_bytes: int) -> catalog.Row | None:
    """The card whose memory, as a process reads it, is nearest; None if none is within 1 %."""
    rows = (catalog.find("gpus", name) for name in catalog.names("gpus"))
    known = [
        row
        for row in rows
        if row
        and row["memory_bytes_reading"] == "process"
        and "compute_capability" in row
        and row["kind"] in CARDS
    ]
    row = min(known, key=lambda row: abs(row["memory_bytes"] - num_bytes))
    return row if abs(row["memory_bytes"] - num_bytes) <= SAME_CARD * num_bytes else None


def _nodes(config: GPUConfig, count: int) -> tuple[int, int]:
    per_node, nodes = config.gpus_per_node, config.num_nodes
    if per_node is None:
        per_node = -(-count // nodes) if nodes else min(count, 8)
    if nodes is None:
        nodes = -(-count // per_node)
    if per_node * nodes < count or per_node * (nodes - 1) >= count:
        problem = f"hardware: {nodes} nodes of {per_node} GPUs are not num_gpus={count}"
        raise InputError(f"{problem}; set num_nodes={-(-count // per_node)}")
    if config.num_nodes is not None and count % nodes:
        whole = -(-count // nodes) * nodes
        problem = f"hardware: num_gpus={count} does not divide by num_nodes={nodes}"
        raise InputError(f"{problem}; set num_gpus={whole}, or num_nodes=1")
    return per_node, nodes
