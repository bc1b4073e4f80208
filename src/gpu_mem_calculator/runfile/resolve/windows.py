"""Windows and WSL, where the driver moves what finds no room on the card to the host's memory.

Since driver 536.40 (CUDA's sysmem fallback policy, nvidia.custhelp.com answer 5490), also in WSL,
which has no setting for it (microsoft/WSL issue 11050). The host's part is half of its memory
(Task Manager's shared GPU memory; windows-driver-docs, graphics memory reporting). A run goes on
over PCI Express, about eight times slower where measured (Haoming02/sd-webui-forge-classic, pull
request 1448).

Windows keeps a part of the card: 1.1 of 24 GB (ollama issue 8723) to 3.2 of 22 (issue 9167). WSL
has half of the host's memory unless .wslconfig says more (learn.microsoft.com, wsl-config).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from ...ledger.units import GIB
from ...run.limits import Limit

if TYPE_CHECKING:
    from ..config import GPUConfig

WSL = "wsl"
KEPT = 3.2 / 22  # of the card, by Windows at most
HALF = "half of the host's, unless .wslconfig says more"
SETTLE = "say what is free: --nvidia-smi"


class SpillingHost(Struct, frozen=True):
    """The host of a card whose driver spills.

    - `node_gb`: GiB that processes have of its memory, None where nobody says it
    - `read_from`: where that stands
    - `spill_bytes`: what the driver may put there; None where it is not known
    - `limits`: what the system may hold of the card
    - `of_wsl`: it is Linux in WSL; on Windows itself torch 2.13 has no expandable segments
      (c10/cuda/driver_api.h: PYTORCH_C10_DRIVER_API_SUPPORTED)
    """

    node_gb: float | None
    read_from: str
    spill_bytes: int | None
    limits: tuple[Limit, ...]
    of_wsl: bool = False


def spilling_host(config: GPUConfig, card_bytes: int) -> SpillingHost:
    """The host of a hardware section; `card_bytes`: the card's memory."""
    gigabytes, said = config.node_memory_gb, config.node_memory_read_from or ""
    of_wsl = config.os == WSL
    whole = None if gigabytes is None or (of_wsl and said) else int(gigabytes * GIB)
    if of_wsl and whole is not None and gigabytes is not None:
        gigabytes, said = gigabytes / 2, HALF
    known = config.available_memory_bytes is not None or config.used_memory_bytes is not None
    why, most = "its desktop and its programs hold a part of the card", int(KEPT * card_bytes)
    kept = Limit(key="Windows", why=why, could="more", adds=most, settle=SETTLE)
    half = None if whole is None else whole // 2
    return SpillingHost(gigabytes, said, half, () if known else (kept,), of_wsl)
