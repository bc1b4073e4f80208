"""List the models that are known by name, or those whose name contains WORD."""

from __future__ import annotations

from ..report.lines import count
from .catalogue import matching_rows, show_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

KEYS = ("name", "title", "hub_id", "aliases", "num_parameters", "source")  # shown as JSON
BYTES = 2  # of a 16-bit weight
HEAD = ("name", "size", "hub id")


def run(args: argparse.Namespace) -> int:
    """List the presets."""
    rows = matching_rows("index", args.word, "presets")
    if args.gpu is not None:
        from ..runfile.config import GPUConfig
        from ..runfile.resolve.hardware import find_hardware

        most = find_hardware(GPUConfig(gpu=args.gpu), None).memory_bytes // BYTES
        rows = [row for row in rows if row["num_parameters"] <= most]
    data = [{key: row[key] for key in KEYS if key in row} for row in rows]
    cells = [(row["name"], count(row["num_parameters"]), row.get("hub_id", "")) for row in rows]
    return show_rows(args, data, HEAD, cells, {1})
