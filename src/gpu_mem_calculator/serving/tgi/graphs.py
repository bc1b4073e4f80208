"""CUDA graphs of TGI's decoding, and its number of draft tokens."""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.num import ceil_div
from ...ledger.source import code
from ...run.run import Run
from ...run.served import GRAPHS, ServerItem
from ...run.weights.layer_widths import distinct_widths
from ...run.weights.rank_weights import BITS
from ...run.weights.shards import ServerShard
from .defaults import BY_MODEL, block_size
from .versions import version

GRAPH_CODE = code(
    "text-generation-inference 3.3.7 flash_causal_lm.py cuda_graph_warmup: logits of each size, "
    "tables and layers of the largest"
)
GRAPH_SIZES = (1, 2, 4, 8, 16, 32)
MEDUSA_HEADS = 2  # if the run file does not say


def graph_sizes(run: Run) -> tuple[int, ...]:
    """Batch sizes that are captured.

    Before 2.0 graphs are off by default, with bitsandbytes before 2.1.
    """
    requested, default_from = run.options.get("cuda_graphs"), BY_MODEL
    if run.options["quantization"] == "nf4":
        default_from = (2, 1, 0)
    if run.options.get("enforce_eager") or (requested is None and version(run) < default_from):
        return ()
    sizes = GRAPH_SIZES if requested is None else requested
    return tuple(size for size in sizes if size > tokens_ahead(run))  # flash_causal_lm.py warmup


def tokens_ahead(run: Run) -> int:
    """Draft tokens of a step; Medusa's heads are part of the model."""
    default = MEDUSA_HEADS if run.options["speculative_method"] == "medusa" else 0
    return int(run.options["num_speculative_tokens"] or default)


def graph_items(run: Run, shard: ServerShard, length: int) -> Iterator[ServerItem]:
    """Logits of each batch size; block tables and layers of the largest."""
    sizes = graph_sizes(run)
    if not sizes:
        return
    size, largest = BITS[run.precision] // 8, max(sizes)
    layers = distinct_widths(run.arch, shard)
    elements = (8 * widths.hidden + 2 * widths.up + widths.mixed for widths in layers)
    widest, rows, vocab = max(elements, default=0), sum(sizes), run.arch.vocab
    pages = int(ceil_div(length, block_size(run)))
    total = largest * widest * size + rows * vocab * size + largest * pages * 4
    layer = f"{largest} sequences × {widest:,} of a layer × {size} bytes"
    logits = f"{rows} rows × {vocab:,} logits × {size} bytes"
    formula = f"{layer} + {logits} + {largest} sequences × {pages:,} pages × 4 bytes"
    name = f"CUDA graphs: batches of {', '.join(map(str, sizes))}"
    yield ServerItem(GRAPHS, name, total, GRAPH_CODE, formula)
