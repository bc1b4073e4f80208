"""Torch's attention kernels against the curve: `python -m maintenance.curves.attention_kernels
ROWS`.

ROWS are lines of `python -m maintenance.timing_campaign.kernels` on an H200.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from msgspec import json

from gpu_mem_calculator.catalog.curve_files import curve
from gpu_mem_calculator.timing.curves.grid import Axis, Grid

from .__main__ import FOLDER, text
from .spread import digits, spread

CARD = "h200-141gb-sxm"
HEAD_DIMS = (64, 128)
KEYS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
# The node of autograd that names the kernel, and the name in the file.
KERNELS = {
    "ScaledDotProductCudnnAttentionBackward0": "cudnn",
    "ScaledDotProductFlashAttentionBackward0": "flash",
}
SOURCE = (
    "measured on one NVIDIA H200, 2026-11-18: torch 2.11.0+cu130, driver 580.159.04, causal, bf16"
)

Key = tuple[str, int, int]


def kernels_file(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Forward over the curve, and backward over forward: medians over batches and heads."""
    file = curve("attention", CARD)
    grid = Grid([Axis(a, continues=False) for a in file["axes"].values()], file["values"])
    forward: dict[Key, list[float]] = defaultdict(list)
    backward: dict[Key, list[float]] = defaultdict(list)
    for row in rows:
        name = KERNELS.get(row.get("kernel", ""))
        if name is not None:
            size, length, heads = row["head_size"], row["length"], row["batch"] * row["heads"]
            rate = 2.0 * heads * length * length * size / row["seconds"] / 1e12
            forward[name, size, length].append(grid.at(size, length, heads) / rate)
            backward[name, size, length].append(row["backward_seconds"] / row["seconds"])
    return {
        "card": CARD,
        "source": SOURCE,
        "unit": "seconds of forward over those of the curve; seconds of backward over forward",
        "axes": {"head_dim": HEAD_DIMS, "keys": KEYS},
        "kernels": {
            name: {"forward": _medians(forward, name), "backward": _medians(backward, name)}
            for name in KERNELS.values()
        },
        "spread": {
            name: spread(
                (median(values), one)
                for key, values in backward.items()
                if key[0] == name
                for one in values
            )
            for name in KERNELS.values()
        },
    }


def _medians(values: dict[Key, list[float]], name: str) -> list[float]:
    return [digits(median(values[name, dim, keys])) for dim, keys in product(HEAD_DIMS, KEYS)]


def main(path: str) -> None:
    """Write the file."""
    lines = Path(path).read_text("utf-8").splitlines()
    rows = [row for row in map(json.decode, lines) if row["group"] == "attention"]
    folder = FOLDER / "attention_kernels"
    folder.mkdir(exist_ok=True)
    (folder / f"{CARD}.json").write_text(text(kernels_file(rows)), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
