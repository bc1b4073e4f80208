"""Machines whose card and host share one memory: DGX Spark, Jetson, Strix Halo, Apple.

What a run finds free there is not the card's total: the system has its part. DGX Spark, without a
desktop and with the page cache dropped: 117 of 121.7 GiB are available on two machines (Hugging
Face, nvidia/GLM-5.3-Flash-FP4-Local, discussion 7), 101.3 on two others with either driver
(MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks, issue 47). Other machines are taken as between these.
An idle Orin Nano with a desktop has 2,847 of 7,772 MiB in use (proventusnova.com, Jetson Orin high
RAM usage at idle), of which its desktop 0.8 GB (dusty-nv/jetson-containers, docs/setup.md).

Pages of files are given back, but NVIDIA's driver does not wait for it: start-up of a server failed
with 22 GiB available (vllm-project/vllm#56824), and the profiling pass of one whose share was 83 of
119 GiB took 112 (vllm-project/vllm#46307). AMD's cards map half of the memory (GTT;
rocm.docs.amd.com, AMD RDNA3.5 system optimization). What the rows of Apple's cards have is Metal's
recommendedMaxWorkingSetSize, a share of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from ...ledger.units import GIB, MIB, gib
from ...run.limits import Limit

if TYPE_CHECKING:
    from ... import catalog
    from ..config import GPUConfig

LEAST, MOST = 1 - 117 / 121.7, 1 - 101.3 / 121.7  # shares of the whole that the system has
SMALL = 2847 * MIB  # what it has at most on a small machine
MAPPED = "say what the card has, as rocminfo prints it: --set hardware.gpu_memory_bytes=..."
SETTLE = "say what is free: --nvidia-smi, or --set hardware.available_memory_bytes=..."


class SharedMemory(Struct, frozen=True):
    """The memory that card and host share.

    - `free_bytes`: what a run finds free of it, where the system has least
    - `unsure_bytes`: how much less that can be
    - `keeps_pages`: its driver does not get the pages of files that are being read at once
    - `mapped_bytes`: what the card may take of it without settings of the machine; None where that
      is known
    """

    free_bytes: int
    unsure_bytes: int = 0
    mapped_bytes: int | None = None
    keeps_pages: bool = False

    def limits(self, card_bytes: int) -> Iterator[Limit]:
        """What is open for a card that may take `card_bytes` of it."""
        more = min(self.unsure_bytes, card_bytes - self.free_bytes + self.unsure_bytes)
        if more > 0:
            least = gib(self.free_bytes - self.unsure_bytes)
            why = f"card and host share it, and of some machines the system leaves {least} GiB"
            yield Limit(key="memory of the system", why=why, could="more", adds=more, settle=SETTLE)
        if self.mapped_bytes is not None and self.mapped_bytes < card_bytes:
            usual, more = gib(self.mapped_bytes), card_bytes - self.mapped_bytes
            why = f"Linux maps {usual} GiB for the card, unless ttm.pages_limit or BIOS say more"
            yield Limit(key="VRAM and GTT", why=why, could="more", adds=more, settle=MAPPED)


def shared_memory(row: catalog.Row, config: GPUConfig) -> SharedMemory:
    """The memory that a card shares with its host."""
    nvidia = row["vendor"] == "nvidia"  # its reading is of the whole; of others of the card's part
    whole = int(row["memory_bytes"] if nvidia else row["memory_gb"] * GIB)
    if config.node_memory_gb is not None:
        whole = int(config.node_memory_gb * GIB)
    if config.available_memory_bytes is not None:
        free = min(config.available_memory_bytes, whole)
        return SharedMemory(free, keeps_pages=nvidia)
    if config.used_memory_bytes is not None:
        return SharedMemory(max(whole - config.used_memory_bytes, 1), keeps_pages=nvidia)
    system, most = int(LEAST * whole), max(int(MOST * whole), min(SMALL, whole // 2))
    mapped = row["vendor"] == "amd" and config.gpu_memory_bytes is None
    half = whole // 2 if mapped else None
    return SharedMemory(whole - system, most - system, half, keeps_pages=nvidia)
