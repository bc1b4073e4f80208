"""How much of a card vLLM asks for, what it takes off, and why it would not start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import ceil

from msgspec import Struct

from ...ledger.ledger import CPU, GPU
from ...ledger.source import Source, code
from ...ledger.units import GIB
from ...run.run import Run
from ...run.served import ACTIVATION, GRAPHS, NON_TORCH, WEIGHTS, ServerItem
from ...weights.rank_weights import ROUNDED, run_scheme
from ...weights.shards import ServerShard
from ...weights.vllm_formats import loaded
from .activations import element_bytes, peak
from .cache import BlockPool
from .graphs import COUNTED_FROM, graph_parts
from .lora import slots
from .non_torch import before, counted
from .sampler import SourcedBytes
from .shards import shard
from .speculative import draft
from .versions import v1, version
from .weights import weights

LOADED = code("vllm 0.11.0 vllm/v1/worker/gpu_model_runner.py load_model, as `Model loading took`")
ADAPTERS = code("vllm 0.11.0 vllm/lora/layers, made while the model is loaded")
BUFFERS = code("vllm 0.11.0 vllm/v1/spec_decode/eagle.py EagleProposer.__init__")
OFFLOAD = code("vllm 0.11.0 vllm/model_executor/models/utils.py maybe_offload_to_cpu")
NOT_LAYERS = ("embedding", "output head", "rotary tables", ROUNDED)
LOOKED_FROM = (0, 9, 1)  # V1 refuses to start where less is free than it asks for


class RankBudget(Struct, frozen=True, kw_only=True):
    """A rank before its pool: what it holds, and what is left of its share of the card."""

    shard: ServerShard
    items: tuple[ServerItem, ...]
    moment: str  # the highest of the trial run
    requested: int
    pool_bytes: int
    outside: int  # what lies before vLLM's first look

    def figure(self, name: str) -> int:
        """The sum of one figure on the GPU."""
        return sum(i.bytes for i in self.items if i.figure == name and i.place == GPU)


def rank(run: Run, stage: int) -> RankBudget:
    """The rank of a stage. `run` has every choice made."""
    part = shard(run, stage)
    trial = peak(run, part)
    items = (
        *_weights(run, part), *_items(ACTIVATION, trial.parts), *_items(NON_TORCH, counted(run)),
        *_items(GRAPHS, (*graph_parts(run, part), *forgotten(run, part))),
    )  # fmt: skip
    requested = ceil(run.options["gpu_memory_utilization"] * run.card_bytes)
    made = RankBudget(
        shard=part,
        items=items,
        moment=trial.moment,
        requested=requested,
        pool_bytes=0,
        outside=sum(size for _, size, _ in before(run)),
    )
    given = run.options["kv_cache_memory_bytes"]
    left = requested - taken(run, made)
    return RankBudget(shard=part, items=items, moment=trial.moment, requested=requested,
                pool_bytes=left if given is None else int(given), outside=made.outside)  # fmt: skip


def taken(run: Run, one: RankBudget) -> int:
    """What is taken off the share before the cache gets the rest."""
    figures = [WEIGHTS, ACTIVATION, NON_TORCH]
    if counts_graphs(run):
        figures.append(GRAPHS)
    return sum(one.figure(name) for name in figures)


def counts_graphs(run: Run) -> bool:
    """Whether graphs are guessed and taken off."""
    return v1(run) and version(run) >= COUNTED_FROM


def _items(figure: str, parts: Iterable[SourcedBytes]) -> tuple[ServerItem, ...]:
    return tuple(ServerItem(figure=figure, name=name, bytes=size, source=source)
                 for name, size, source in parts if size)  # fmt: skip


def _weights(run: Run, part: ServerShard) -> tuple[ServerItem, ...]:
    """Parameters, adapters and a draft; some of the layers' may lie in the host's memory."""
    rows: list[tuple[str, int, Source]] = [
        (name, size, LOADED) for name, size in _without(weights(run, part), _away(run, part))
    ]
    rows.append(("draft: parameters", _drafted(run, part), LOADED))
    if v1(run):
        rows += [(name, size, ADAPTERS) for name, size in slots(run, part)]
    found = [ServerItem(figure=WEIGHTS, name=name, bytes=size, source=source)
             for name, size, source in rows if size]  # fmt: skip
    away = _away(run, part)
    if away:
        found.append(
            ServerItem(
                figure=WEIGHTS, name="offloaded parameters", bytes=away, source=OFFLOAD, place=CPU
            )
        )
    return tuple(found)


def _away(run: Run, part: ServerShard) -> int:
    """What lies in the host's memory: `cpu_offload_gb`, all of the weights at most."""
    wanted = int(run.options["cpu_offload_gb"] * GIB)
    return min(wanted, sum(size for _, size in weights(run, part))) if wanted else 0


def _without(rows: list[tuple[str, int]], away: int) -> Iterator[tuple[str, int]]:
    """The rows less so many bytes, those of the layers first."""
    for name, size in sorted(rows, key=lambda row: row[0] in NOT_LAYERS) if away else rows:
        kept = max(0, size - away)
        away -= size - kept
        yield name, kept


def _drafted(run: Run, part: ServerShard) -> int:
    """Predictors of further tokens are stored as the model is, another model in its own dtype."""
    guess, bits = draft(run, part), 8 * element_bytes(run)
    if not guess.quantized:
        return sum(one.numel for one in guess.held) * bits // 8
    how = loaded(run_scheme(run), version(run), run.compute_capability)
    return sum(size for one in guess.held for _, size in how.stored(one, bits))


def forgotten(run: Run, part: ServerShard) -> Iterator[SourcedBytes]:
    """Tensors of the worker that its budget leaves out: buffers of a draft, V0's adapters."""
    yield from ((name, size, BUFFERS) for name, size in draft(run, part).buffers)
    if not v1(run):
        yield from ((name, size, ADAPTERS) for name, size in slots(run, part))


def problem(run: Run, one: RankBudget, pool_problem: str) -> str:
    """Why the rank would not start, in a sentence."""
    share, free = run.options["gpu_memory_utilization"], run.free_bytes - one.outside
    given = run.options["kv_cache_memory_bytes"]
    behind = every(one) - taken(run, one)  # what comes behind the pool
    fits = max(0, int(100 * (free - behind) / run.card_bytes)) / 100
    if free <= 0:
        return (f"CUDA's context and libraries take {one.outside / GIB:.2f} GiB, and "
                f"{run.free_bytes / GIB:.2f} are free; use a larger card")  # fmt: skip
    if v1(run) and version(run) >= LOOKED_FROM and given is None and free < one.requested:
        return (f"gpu_memory_utilization={share:g} asks for {one.requested / GIB:.2f} GiB, and "
                f"{free / GIB:.2f} of {run.card_bytes / GIB:.2f} GiB are free when vLLM starts; "
                f"use {fits:g}")  # fmt: skip
    if pool_problem and one.pool_bytes <= 0 and given is None:
        return (f"weights, the trial run and libraries take {taken(run, one) / GIB:.2f} GiB, and "
                f"gpu_memory_utilization={share:g} gives {one.requested / GIB:.2f}; raise it, use "
                "more GPUs or fewer bits")  # fmt: skip
    if pool_problem:
        return pool_problem
    over = every(one) + one.pool_bytes - free
    if over > 0:
        fix = f"gpu_memory_utilization={fits:g}" if given is None else (
            f"kv_cache_memory_bytes={max(0, one.pool_bytes - over)}")  # fmt: skip
        return (f"graphs are captured behind the cache and would lack {over / GIB:.2f} GiB; use "
                f"{fix} or less")  # fmt: skip
    return ""


def every(one: RankBudget) -> int:
    """Everything but the pool."""
    return sum(one.figure(name) for name in (WEIGHTS, ACTIVATION, NON_TORCH, GRAPHS))


def needs_bytes(run: Run, one: RankBudget, pool: BlockPool) -> int:
    """The least card on which the rank starts and its pool has room for max_model_len."""
    share = float(run.options["gpu_memory_utilization"])
    cache = pool.needs_bytes(int(run.options["max_seq_len"])) + pool.spare_bytes
    cache = max(cache, pool.states_bytes)
    least = [one.outside + every(one) + cache]
    if run.options["kv_cache_memory_bytes"] is None and pool.block_bytes:
        least.append(ceil((taken(run, one) + cache) / share))
        if share < 1 and v1(run) and version(run) >= LOOKED_FROM:
            least.append(ceil(one.outside / (1 - share)))
    return max(least)
