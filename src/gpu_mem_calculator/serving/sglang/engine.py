"""SGLang: a share of the memory is for weights and KV cache, the rest for activations and graphs.

Names of a run file and SGLang's own:
- `gpu_memory_utilization`: mem_fraction_static
- `max_num_seqs`: max_running_requests
- `max_seq_len`: context_length
- `enforce_eager`: disable_cuda_graph

What SGLang calls GB are GiB. Files refer to sglang 0.5.23; `engine_version` selects older rules,
back to 0.4.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from msgspec.structs import replace

from ...ledger.formula import SIMULATED
from ...ledger.ledger import CPU
from ...ledger.mesh import Mesh
from ...ledger.source import ARITHMETIC, code
from ...run import served
from ...run.cuda import libraries
from ...run.cuda.nccl import nccl
from ...run.engine import Engine
from ...run.run import Run
from ...run.served import ACTIVATION, POOL, WEIGHTS, NamedBytes, ServerItem, ServerMemory, left_open
from ...run.server_host import (
    ServerHost,
    checkpoint_bytes,
    loading_notes,
    loading_problem,
    quantizes,
)
from ...run.weights.rank_weights import offloaded, weight_items
from ...run.weights.recipes import RECIPES
from . import cache, versions
from .activations import TABLE, activation_items, row_bytes
from .cache import (
    SglangPool,
    build_pool,
    host_pools,
    largest_pool,
    rounding_bytes,
    slots_of_a_request,
)
from .checks import StartBytes, problems, start_problem
from .command import command
from .graphs import graph_items
from .options import OPTIONS, SglangOptions, stage_layers
from .row import ROW
from .speculative import ALIASES, METHODS
from .versions import COUNTED_DRAFT, SPARE_STATE, kernels_loaded_first
from .weights import draft, load_items

POOL_CODE = code(
    "sglang 0.5.23 srt/mem_cache/kv_cache_configurator.py _profile_available_bytes: "
    "free after loading − free before × (1 − mem_fraction_static)"
)
DRAFT_CODE = code(
    "sglang 0.5.23 srt/model_executor/pool_configurator.py: the draft's cache has as "
    "many tokens as the model's"
)
OFFLOAD = code("sglang 0.5.23 srt/utils/offloader.py: whole parameters in pinned memory")
HICACHE = code(
    "sglang 0.5.18 srt/mem_cache/pool_host/base.py HostKVCache: hicache_size, else hicache_ratio × "
    "the pool; before 0.5.5 torch pins it, a power of two"
)
GAPS_FORMULA = f"{SIMULATED}each buffer of the pool in steps of 2 MiB, less its bytes"
GAPS = code("torch 2.11 c10/cuda/CUDACachingAllocator.cpp: buffers in whole steps of 2 MiB")


def serve(run: Run) -> ServerMemory:
    """Memory of one rank of the run's pipeline stage."""
    setting = SglangOptions(run=run)
    outside = tuple(_outside_torch(setting))
    available = _available_bytes(setting, outside)
    loading = (ServerItem(WEIGHTS, *named) for named in load_items(setting))
    weights = tuple(item for item in loading if item.bytes)  # the log's "mem usage"
    loaded = _gpu_bytes(weights)
    pool_limit = available - loaded - int(available * (1 - setting.fraction))
    pool = largest_pool(setting, pool_limit)
    pool_items = tuple(_pool_items(setting, pool))
    other = (*_uncounted_draft(setting, pool), *_working_items(setting, pool))
    pool_bytes = _gpu_bytes(pool_items)
    start = StartBytes(available, loaded, pool_limit, _gpu_bytes(other))
    host = _host(setting, loaded)
    beside = sum(size for _, size, _ in outside)
    return ServerMemory(
        items=(*weights, *pool_items, *other, *_host_items(setting, pool)),
        tokens=pool.tokens,
        token_bytes=pool.cell.full,
        max_seq_len=setting.context,
        most_sequences=pool.requests,
        needs_bytes=_needs(setting, loaded, other) + sum(size for _, size, _ in outside),
        sequence_bytes=lambda context: _sequence_bytes(pool, pool_bytes, context),
        outside=outside,
        problem=start_problem(setting, pool, start) or loading_problem(run, host, beside),
        host=host,
        command=command(setting),
        notes=(*_notes(setting, pool), *loading_notes(run, host, beside)),
        chosen=left_open(
            run.options,
            gpu_memory_utilization=setting.fraction,
            chunked_prefill_size=setting.whole_chunk,
            max_num_seqs=pool.requests,
            cuda_graph_max_bs=setting.largest_graph,
        ),
    )


def _host(setting: SglangOptions, loaded: int) -> ServerHost:
    """The checkpoint's pages; fp8 is made of a model that is whole in 16 bits on the GPU."""
    run, whole = setting.run, 0
    if quantizes(run):
        plain = replace(run, options={**run.options, "quantization": "none"})
        whole = sum(size for _, size in weight_items(plain, setting.shard, rounded=False))
    ranks = int(run.mesh.tp * run.mesh.pp)
    return ServerHost(file_bytes=checkpoint_bytes(run, [loaded] * ranks), whole_bytes=whole)


def _gpu_bytes(items: tuple[ServerItem, ...]) -> int:
    return sum(item.bytes for item in items if item.place != CPU)


def _sequence_bytes(pool: SglangPool, pool_bytes: int, context: int) -> int:
    """Bytes of the pool that one sequence takes, by the buffer of which it takes the most."""
    share = pool.share(context)
    return 2**62 if share == float("inf") else -int(-share * pool_bytes // 1)


def _outside_torch(setting: SglangOptions) -> Iterator[NamedBytes]:
    """What is allocated before the weights: CUDA's context, torch's kernels where something runs
    one before loading, and NCCL for the ranks of one replica; replicas do not communicate.
    """
    run = setting.run
    yield "CUDA context", libraries.context_bytes(run), str(libraries.CONTEXT_SOURCE)
    if kernels_loaded_first(run):
        yield "torch's kernels", libraries.kernels_bytes(run), str(libraries.KERNELS_SOURCE)
    replica = replace(run, mesh=Mesh(dp=1, tp=run.mesh.tp, pp=run.mesh.pp))
    yield from nccl(replica, streams=False)


def _available_bytes(setting: SglangOptions, outside: tuple[NamedBytes, ...]) -> int:
    """SGLang's "avail mem" before loading: the run file's figure, else that of a card on which only
    others hold memory.
    """
    run = setting.run
    idle = run.card_bytes - run.used_bytes
    if run.free_bytes < idle:
        return run.free_bytes
    return idle - sum(size for _, size, _ in outside)


def _pool_items(setting: SglangOptions, pool: SglangPool) -> Iterator[ServerItem]:
    for name, size, formula in pool.parts:
        yield ServerItem(POOL, name, size, POOL_CODE, formula)
    if setting.version >= COUNTED_DRAFT and pool.draft_bytes:
        yield _draft_cache(pool)


def _uncounted_draft(setting: SglangOptions, pool: SglangPool) -> Iterator[ServerItem]:
    """A draft before 0.5.14, which SGLang allocates after it has sized the pool without it."""
    if setting.version < COUNTED_DRAFT and pool.draft_bytes:
        size, formula = draft(setting)
        yield ServerItem(WEIGHTS, "draft: parameters", size, ARITHMETIC, formula)
        yield _draft_cache(pool)


def _draft_cache(pool: SglangPool) -> ServerItem:
    formula = f"{pool.draft_bytes // pool.cell.draft:,} tokens × {pool.cell.draft:,} bytes"
    return ServerItem(POOL, "draft: keys and values", pool.draft_bytes, DRAFT_CODE, formula)


def _working_items(setting: SglangOptions, pool: SglangPool) -> Iterator[ServerItem]:
    """What uses the memory that mem_fraction_static leaves free."""
    handle, gaps = libraries.handle_bytes(setting.run), rounding_bytes(setting, pool)
    rows = (
        *((ACTIVATION, *named) for named in activation_items(setting, pool.requests)),
        (ACTIVATION, "between the pool's buffers", gaps, GAPS_FORMULA, GAPS),
        *((served.GRAPHS, *named) for named in graph_items(setting, pool.requests)),
        (served.NON_TORCH, "cuBLAS handle", handle, "", libraries.HANDLE_SOURCE),
    )
    for figure, name, size, formula, source in rows:
        if size:
            yield ServerItem(figure, name, size, source, formula)


def _host_items(setting: SglangOptions, pool: SglangPool) -> Iterator[ServerItem]:
    """What is in host RAM: offloaded parameters, and the hierarchical cache."""
    on_host = offloaded(setting.run, setting.shard)
    if on_host.size:
        name = "offloaded parameters"
        text = f"{SIMULATED}{on_host.size:,} bytes, each parameter rounded up to a power of two"
        yield ServerItem(WEIGHTS, name, on_host.pinned, OFFLOAD, text, place=CPU)
    for one in host_pools(setting, pool):
        yield ServerItem(POOL, one.name, one.bytes, HICACHE, one.formula, place=CPU)


def _needs(setting: SglangOptions, loaded: int, other: tuple[ServerItem, ...]) -> int:
    """The least bytes inside torch with which one sequence of the whole context can be served.

    Where the user sets the share, both parts must fit: the static one into mem_fraction_static,
    the rest into what it leaves.
    """
    tokens = -(-setting.context // setting.page) * setting.page
    cell = cache.cache_cell(setting)
    pool = build_pool(setting, cell, tokens, slots_of_a_request(setting) if cell.state else 0)
    static = loaded + max(pool.bytes, _split_pool(setting, pool)) + pool.draft_bytes
    table = (pool.requests + 1) * row_bytes(setting)
    least = static + table + sum(item.bytes for item in other if item.name != TABLE)
    if setting.run.options["gpu_memory_utilization"] is not None:  # the pool takes its whole share
        rest = least - static
        least = max(least, ceil(static / setting.fraction))
        if setting.fraction < 1:
            least = max(least, ceil(rest / (1 - setting.fraction)))
    return least


def _split_pool(setting: SglangOptions, pool: SglangPool) -> int:
    """Bytes of the smallest pool that holds `pool` after mamba_full_memory_ratio has split it
    into states and tokens; 0 where it is not split.
    """
    ratio = float(setting.run.options["mamba_full_memory_ratio"])
    states = pool.slots * pool.cell.state
    if not states or not ratio:
        return 0
    spare = pool.cell.state if setting.version >= SPARE_STATE else 0
    rest = pool.bytes - states - pool.cell.state  # one slot is for padding
    return ceil((1 + ratio) * max((states + spare) / ratio, rest))


def _notes(setting: SglangOptions, pool: SglangPool) -> Iterator[str]:
    yield from versions.notes(setting.run)
    if setting.prefill_sizes:
        yield (
            f"{len(setting.prefill_sizes)} prefill graphs are counted by their number; a public "
            "log has 11 GB of them, and 0.3 to 2 GB are usual (sgl-project/sglang#39713, #31203)"
        )
    yield from ROW.borrowed_notes(setting.run.arch.family)
    if setting.run.options["gpu_memory_utilization"] is None:
        yield f"mem_fraction_static is {setting.fraction:.3g}, SGLang's default for this GPU"
    if pool.tokens and pool.tokens < setting.context:
        yield (
            f"the KV cache holds {pool.tokens:,} tokens, less than the context of "
            f"{setting.context:,}; SGLang starts and rejects longer requests"
        )
    if not setting.run.options["disable_radix_cache"]:
        yield "prefix caching (the radix cache) needs no extra memory: it reuses the KV cache"
    if pool.window_tokens:
        yield (
            f"sliding-window layers have a separate KV cache of {pool.window_tokens:,} tokens "
            "(swa_full_tokens_ratio)"
        )
    if pool.slots:
        each = slots_of_a_request(setting)
        yield (
            f"state-space layers have {pool.slots:,} states, {each} per running request "
            "(mamba_full_memory_ratio)"
        )
    if setting.version < COUNTED_DRAFT and pool.draft_bytes:
        yield (
            "SGLang before 0.5.14 sizes the KV cache without the draft model: lower "
            "mem_fraction_static if it runs out of memory"
        )


ENGINE = Engine(
    name="sglang",
    title=ROW.title,
    options=OPTIONS,
    values={"quantization": RECIPES, "speculative_method": (*METHODS, *ALIASES)},
    problems=problems,
    ledger=lambda run: serve(run).ledger,
    stage_layers=stage_layers,
    serve=serve,
)
