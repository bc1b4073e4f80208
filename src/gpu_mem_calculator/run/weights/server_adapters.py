"""LoRA adapters that a server has memory for."""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.formula import bytes_each
from ...ledger.num import ceil_div
from ...ledger.source import Source
from ...models.arch.adapters import linears
from ..run import Run
from ..served import WEIGHTS, ServerItem
from .rank_weights import BITS
from .shards import ServerShard


def adapter_problems(run: Run) -> Iterator[str]:
    """Adapters whose rank is not given."""
    if run.options["max_loras"] and not run.options["max_lora_rank"]:
        yield "inference.max_loras needs inference.max_lora_rank; set it, or leave max_loras out"


def adapter_items(run: Run, shard: ServerShard, source: Source) -> Iterator[ServerItem]:
    """Adapters on every projection: r (in + out) elements each, sharded with the projection."""
    rank = run.options.get("max_lora_rank")
    if rank is None:
        return
    count = int(run.options.get("max_loras") or 1)
    projections = (linear for layer in shard.layers(run.arch) for linear in linears(layer))
    elements = sum(int(ceil_div(one.ins[1] + one.outs[1], shard.tp)) for one in projections)
    each = BITS[run.precision]
    size = elements * int(rank) * count * each // 8
    formula = (
        f"{count} adapters × rank {rank} × {elements:,} inputs and outputs × {bytes_each(each)}"
    )
    yield ServerItem(WEIGHTS, "adapters", size, source, formula)
