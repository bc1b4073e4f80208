"""List the GPUs that are known by name, with the memory a process can use."""

from __future__ import annotations

from ..report.lines import gib
from .catalogue import matching_rows, show_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

HEAD = ("name", "GB", "usable", "GB/s", "card")


def run(args: argparse.Namespace) -> int:
    """List the cards."""
    rows = matching_rows("gpus", args.word, "gpus")
    if args.gpu_mem is not None:
        rows = [row for row in rows if row["memory_gb"] == args.gpu_mem]
    cells = [
        (
            row["name"],
            f"{row['memory_gb']:g}",
            f"{gib(row['memory_bytes'], 2)} GiB" if row["memory_bytes_known"] else "?",
            f"{row['bandwidth_gb_per_s']:,}",
            row["title"].removeprefix("NVIDIA ").removeprefix("GeForce "),
        )
        for row in rows
    ]
    return show_rows(args, rows, HEAD, cells, {1, 2, 3})
