"""One rank's share of the card: what vLLM requests, what it deducts, and why it might not start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import ceil

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.ledger import CPU, GPU
from ...ledger.source import code
from ...ledger.units import GIB
from ...run.run import Run
from ...run.served import ACTIVATION, GRAPHS, NON_TORCH, WEIGHTS, ServerItem
from ...weights.rank_weights import ROUNDED, run_format
from ...weights.shards import ServerShard
from .activations import element_bytes, profile_peak
from .cache import BlockPool
from .formats import loaded_format
from .graphs import COUNTED_FROM, graph_parts
from .lora import adapter_slots
from .non_torch import counted_parts, uncounted_parts
from .sampler import SourcedBytes
from .shards import rank_shard
from .speculative import draft_model
from .versions import v1, version
from .weights import rank_weights

LOADED_SOURCE = code(
    "vllm 0.11.0 vllm/v1/worker/gpu_model_runner.py load_model, as `Model loading took`"
)
ADAPTERS_SOURCE = code("vllm 0.11.0 vllm/lora/layers, made while the model is loaded")
BUFFERS_SOURCE = code("vllm 0.11.0 vllm/v1/spec_decode/eagle.py EagleProposer.__init__")
OFFLOAD_SOURCE = code("vllm 0.11.0 vllm/model_executor/models/utils.py maybe_offload_to_cpu")
NOT_LAYERS = ("embedding", "output head", "rotary tables", ROUNDED)
CHECKS_FREE_FROM = (0, 9, 1)  # V1 refuses to start if less is free than it requests


class RankBudget(Struct, frozen=True, kw_only=True):
    """One rank before its pool is allocated; sizes in bytes.

    - `shard`: the rank's part of the model
    - `items`: weights, activations, memory outside torch, and graphs
    - `peak_instant`: where the profile run is highest
    - `requested_bytes`: gpu_memory_utilization x card
    - `pool_bytes`: what is left for the KV cache
    - `outside_bytes`: in use before vLLM's first memory snapshot
    """

    shard: ServerShard
    items: tuple[ServerItem, ...]
    peak_instant: str
    requested_bytes: int
    pool_bytes: int
    outside_bytes: int

    def figure(self, name: str) -> int:
        """Bytes on the GPU of all items of one figure (weights, activations, ...)."""
        return sum(i.bytes for i in self.items if i.figure == name and i.place == GPU)


def rank_budget(run: Run, stage: int) -> RankBudget:
    """The budget of one rank of a pipeline stage; `run` has every default applied."""
    shard = rank_shard(run, stage)
    peak = profile_peak(run, shard)
    items = (
        *_weight_items(run, shard),
        *_items(ACTIVATION, peak.parts),
        *_items(NON_TORCH, counted_parts(run)),
        *_items(GRAPHS, (*graph_parts(run, shard), *unbudgeted_parts(run, shard))),
    )
    requested = ceil(run.options["gpu_memory_utilization"] * run.card_bytes)
    budget = RankBudget(
        shard=shard,
        items=items,
        peak_instant=peak.instant,
        requested_bytes=requested,
        pool_bytes=0,
        outside_bytes=sum(size for _, size, _ in uncounted_parts(run)),
    )
    fixed_pool = run.options["kv_cache_memory_bytes"]
    left = requested - deducted_bytes(run, budget)
    return replace(budget, pool_bytes=left if fixed_pool is None else int(fixed_pool))


def deducted_bytes(run: Run, budget: RankBudget) -> int:
    """Bytes deducted from the requested share before the cache gets the rest."""
    figures = [WEIGHTS, ACTIVATION, NON_TORCH]
    if counts_graphs(run):
        figures.append(GRAPHS)
    return sum(budget.figure(name) for name in figures)


def counts_graphs(run: Run) -> bool:
    """Whether vLLM estimates CUDA graphs and deducts them from the pool."""
    return v1(run) and version(run) >= COUNTED_FROM


def _items(figure: str, parts: Iterable[SourcedBytes]) -> Iterator[ServerItem]:
    return (ServerItem(figure, name, size, source) for name, size, source in parts if size)


def _weight_items(run: Run, shard: ServerShard) -> Iterator[ServerItem]:
    """Parameters, adapter slots and a draft; offloaded parameters are in host memory."""
    offloaded = _offloaded_bytes(run, shard)
    left = _subtract_offloaded(rank_weights(run, shard), offloaded)
    rows = [(name, size, LOADED_SOURCE) for name, size in left]
    rows.append(("draft: parameters", _draft_bytes(run, shard), LOADED_SOURCE))
    if v1(run):
        rows += [(name, size, ADAPTERS_SOURCE) for name, size in adapter_slots(run, shard)]
    yield from _items(WEIGHTS, rows)
    if offloaded:
        name = "offloaded parameters"
        yield ServerItem(WEIGHTS, name, offloaded, OFFLOAD_SOURCE, place=CPU)


def _offloaded_bytes(run: Run, shard: ServerShard) -> int:
    """Bytes of weights in host memory: `cpu_offload_gb`, at most all weights."""
    requested = int(run.options["cpu_offload_gb"] * GIB)
    return min(requested, sum(size for _, size in rank_weights(run, shard))) if requested else 0


def _subtract_offloaded(rows: list[tuple[str, int]], offloaded: int) -> Iterator[tuple[str, int]]:
    """The rows minus `offloaded` bytes, taken from the layers' rows first."""
    for name, size in sorted(rows, key=lambda row: row[0] in NOT_LAYERS) if offloaded else rows:
        remaining = max(0, size - offloaded)
        offloaded -= size - remaining
        yield name, remaining


def _draft_bytes(run: Run, shard: ServerShard) -> int:
    """Bytes of a draft's parameters.

    Multi-token-prediction layers are in the model's weight format, other drafts in its dtype.
    """
    draft, bits = draft_model(run, shard), 8 * element_bytes(run)
    if not draft.quantized:
        return sum(parameter.numel for parameter in draft.parameters) * bits // 8
    weight_format = loaded_format(run_format(run), version(run), run.compute_capability)
    stored = (weight_format.stored(parameter, bits) for parameter in draft.parameters)
    return sum(size for parts in stored for _, size in parts)


def unbudgeted_parts(run: Run, shard: ServerShard) -> Iterator[SourcedBytes]:
    """Tensors that vLLM does not deduct: a draft's buffers, and V0's adapter slots."""
    yield from ((name, size, BUFFERS_SOURCE) for name, size in draft_model(run, shard).buffers)
    if not v1(run):
        yield from ((name, size, ADAPTERS_SOURCE) for name, size in adapter_slots(run, shard))


def start_problem(run: Run, budget: RankBudget, pool_problem: str) -> str:
    """Why the rank would not start, in one sentence; empty if it starts."""
    share, free = run.options["gpu_memory_utilization"], run.free_bytes - budget.outside_bytes
    requested, deducted = budget.requested_bytes, deducted_bytes(run, budget)
    by_share = run.options["kv_cache_memory_bytes"] is None
    after_pool = bytes_without_pool(budget) - deducted
    fits = max(0, int(100 * (free - after_pool) / run.card_bytes)) / 100
    if free <= 0:
        return (
            f"CUDA context and libraries need {budget.outside_bytes / GIB:.1f} GiB; "
            f"{run.free_bytes / GIB:.1f} GiB available. Use a GPU with more memory."
        )
    if v1(run) and version(run) >= CHECKS_FREE_FROM and by_share and free < requested:
        return (
            f"--gpu-memory-utilization {share:g} requests {requested / GIB:.1f} GiB; "
            f"{free / GIB:.1f} of {run.card_bytes / GIB:.1f} GiB are free when vLLM starts. "
            f"Use {fits:g}."
        )
    if pool_problem and budget.pool_bytes <= 0 and by_share:
        return (
            f"weights + profiling + libraries need {deducted / GIB:,.1f} GiB; "
            f"{requested / GIB:,.1f} GiB available ({share:g} of the card). Use more GPUs or a "
            "smaller quantization."
        )
    if pool_problem:
        return pool_problem
    excess = bytes_without_pool(budget) + budget.pool_bytes - free
    if excess > 0:
        fixed_pool = f"kv_cache_memory_bytes={max(0, budget.pool_bytes - excess)}"
        fix = f"--gpu-memory-utilization {fits:g}" if by_share else fixed_pool
        return (
            f"CUDA graphs, captured after the KV cache is allocated, lack {excess / GIB:.2f} GiB. "
            f"Use {fix} or less."
        )
    return ""


def bytes_without_pool(budget: RankBudget) -> int:
    """Bytes of all figures but the pool."""
    return sum(budget.figure(name) for name in (WEIGHTS, ACTIVATION, NON_TORCH, GRAPHS))


def needs_bytes(run: Run, budget: RankBudget, pool: BlockPool) -> int:
    """The smallest card, in bytes, on which the rank starts with a pool for max_model_len."""
    share = float(run.options["gpu_memory_utilization"])
    cache = pool.needs_bytes(int(run.options["max_seq_len"])) + pool.spare_bytes
    cache = max(cache, pool.states_bytes)
    lower_bounds = [budget.outside_bytes + bytes_without_pool(budget) + cache]
    if run.options["kv_cache_memory_bytes"] is None and pool.block_bytes:
        lower_bounds.append(ceil((deducted_bytes(run, budget) + cache) / share))
        if share < 1 and v1(run) and version(run) >= CHECKS_FREE_FROM:
            lower_bounds.append(ceil(budget.outside_bytes / (1 - share)))
    return max(lower_bounds)
