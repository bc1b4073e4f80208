"""CUDA graphs of TGI's decoding, and how far it guesses ahead."""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.num import ceil_div
from ...ledger.source import code
from ...run.run import Run
from ...run.served import GRAPHS, ServerItem
from ...weights.layer_widths import distinct_widths
from ...weights.rank_weights import BITS
from ...weights.shards import ServerShard
from .defaults import BY_MODEL, block_size
from .versions import version

GRAPH_CODE = code(
    "text-generation-inference 3.3.7 flash_causal_lm.py cuda_graph_warmup: logits of each size, "
    "tables and layers of the largest"
)
GRAPH_SIZES = (1, 2, 4, 8, 16, 32)
MEDUSA_HEADS = 2  # where the run does not say


def graph_sizes(run: Run) -> tuple[int, ...]:
    """Batch sizes that are captured; bitsandbytes had none at first, and before 2.0 they had to be
    asked for.
    """
    given, since = run.options.get("cuda_graphs"), BY_MODEL
    if run.options["quantization"] == "nf4":
        since = (2, 1, 0)
    if run.options.get("enforce_eager") or (given is None and version(run) < since):
        return ()
    sizes = GRAPH_SIZES if given is None else given
    return tuple(size for size in sizes if size > tokens_ahead(run))  # flash_causal_lm.py warmup


def tokens_ahead(run: Run) -> int:
    """Tokens guessed ahead; Medusa's heads are the model's own."""
    default = MEDUSA_HEADS if run.options["speculative_method"] == "medusa" else 0
    return int(run.options["num_speculative_tokens"] or default)


def graph_items(run: Run, own: ServerShard, length: int) -> Iterator[ServerItem]:
    """Logits of each batch size, tables and layers of the largest."""
    sizes = graph_sizes(run)
    if not sizes:
        return
    size, most = BITS[run.precision] // 8, max(sizes)
    wide = max(
        (8 * w.hidden + 2 * w.up + w.mixed for w in distinct_widths(run.arch, own)), default=0
    )
    logits, tables = sum(sizes) * run.arch.vocab * size, most * int(
        ceil_div(length, block_size(run))) * 4  # fmt: skip
    yield ServerItem(figure=GRAPHS, name="CUDA graphs", bytes=most * wide * size + logits + tables,
               source=GRAPH_CODE, formula=f"batches of {', '.join(map(str, sizes))}")  # fmt: skip
