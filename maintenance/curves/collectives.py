"""The grid of collectives within a node: microseconds over ranks and bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .spread import digits
from .wheel import CARDS, heading, table

KINDS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}
HALF = 2  # bytes of an element


def collectives_file(wheel: Path, card: str) -> dict[str, Any]:
    """The curves of a card; every row of fp16 is kept, so there is no error to state."""
    source = CARDS[card]
    path = f"{source.folder}/comm/nccl/{source.nccl}/nccl_perf.parquet"
    columns = table(wheel, path)
    names = ("op_name", "nccl_dtype", "num_gpus", "message_size", "latency")
    rows = {
        (KINDS[kind], ranks, HALF * elements): 1000 * milliseconds
        for kind, dtype, ranks, elements, milliseconds in zip(
            *(columns[n] for n in names), strict=True
        )
        if dtype == "half" and ranks <= source.ranks
    }
    all_ranks = sorted({key[1] for key in rows})
    sizes = sorted({key[2] for key in rows})
    return {
        **heading(card, path),
        "unit": "microseconds; bytes of the whole tensor, or that one rank sends (all_to_all)",
        "axes": {"ranks": all_ranks, "bytes": sizes},
        "curves": {
            kind: [digits(rows[kind, ranks, size]) for ranks in all_ranks for size in sizes]
            for kind in KINDS.values()
        },
    }
