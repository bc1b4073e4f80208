"""One rank's share of the card: what vLLM requests, what it deducts, and why it might not start.

Part of the weights are adapter slots: `max_loras` slots of `max_lora_rank` for every matrix. vllm
0.11.0 vllm/lora/layers/*.py create_lora_weights and vllm/lora/models.py: a slot holds A (rank x
inputs) and B (outputs x rank) in the model's dtype, even if an adapter uses less. If a matrix is
split over its outputs A is whole, if over its inputs B is (by default `fully_sharded_loras` is
off), so both follow from the matrix's shape on the rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from math import ceil

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.formula import SIMULATED
from ...ledger.ledger import CPU, GPU
from ...ledger.num import ceil_div, round_up
from ...ledger.source import code
from ...ledger.units import GIB
from ...ledger.words import words
from ...models.arch.blocks import Moe
from ...run.run import Run
from ...run.served import ACTIVATION, GRAPHS, NON_TORCH, OTHERS, WEIGHTS, ServerItem
from ...run.weights import find_format
from ...run.weights.rank_weights import ROUNDED, offloaded, run_format
from ...run.weights.shards import LINEAR, ROUTER, ServerShard, held
from ...run.weights.weight_formulas import less, parameters_formula
from .activations import deducts_segments, profile_peak
from .cache import BlockPool, block_pool
from .graphs import COUNTED_FROM, graph_parts
from .non_torch import counted_parts, uncounted_parts
from .parts import SourcedBytes, element_bytes, part, step_sequences, step_tokens
from .shards import rank_shard
from .speculative import draft_model
from .versions import v1, version
from .weights import loaded_format, rank_formulas, rank_weights

LOADED_SOURCE = code(
    "vllm 0.11.0 vllm/v1/worker/gpu_model_runner.py load_model, as `Model loading took`"
)
OFFLOAD_SOURCE = code("vllm 0.11.0 vllm/model_executor/models/utils.py maybe_offload_to_cpu")
NOT_LAYERS = ("embedding", "output head", "rotary tables", ROUNDED)
CHECKS_FREE_FROM = (0, 9, 1)  # V1 refuses to start if less is free than it requests
LMCACHE_CHUNK = 256  # v1/config.py chunk_size
CHUNK_SOURCE = code(
    "LMCache 000620e3 v1/gpu_connector/gpu_connectors.py VLLMPagedMemGPUConnectorV2: the keys and "
    "values of a chunk on their way to the host"
)
SLOTS_SOURCE = code("vllm 0.11.0 vllm/lora/layers, allocated while the model is loaded")
# Models with slots for the embedding and the head (`embedding_modules`), by first version.
VOCABULARY_SLOTS = {
    (0, 0, 0): words(
        "llama mistral mixtral phi3 phimoe granite jamba nemotron exaone solar minicpm"
    ),
    (0, 8, 0): words("bamba"),
    (0, 11, 0): words("falcon_h1 lfm2 apertus"),
    (0, 16, 0): words("qwen3 qwen3_moe"),
}
NO_VOCABULARY_SLOTS = ("llama4", "qwen3_next", "qwen3_5")
FUSED_ON_DISK = ("gpt_oss", "qwen3_5")  # gate and up are one matrix in adapters
EXTRA_WORDS, WORDS_MULTIPLE = 256, 256  # lora_extra_vocab_size, gone in 0.12.0


class RankBudget(Struct, frozen=True, kw_only=True):
    """One rank before its pool is allocated; sizes in bytes.

    - `shard`: the rank's part of the model
    - `items`: weights, activations, memory outside torch, and graphs
    - `peak_instant`: where the profile run is highest
    - `requested_bytes`: gpu_memory_utilization x card
    - `pool_bytes`: what is left for the KV cache
    - `pool_formula`: how `pool_bytes` is computed
    - `outside_bytes`: in use before vLLM's first memory snapshot
    """

    shard: ServerShard
    items: tuple[ServerItem, ...]
    peak_instant: str
    requested_bytes: int
    outside_bytes: int
    pool_bytes: int = 0
    pool_formula: str = ""

    def figure(self, name: str) -> int:
        """Bytes on the GPU of all items of one figure (weights, activations, ...)."""
        return sum(i.bytes for i in self.items if i.figure == name and i.place == GPU)


def rank_budget(run: Run, stage: int) -> RankBudget:
    """The budget of one rank of a pipeline stage; `run` has every default applied."""
    shard = rank_shard(run, stage)
    peak = profile_peak(run, shard)
    if deducts_segments(run):
        from .segments import with_segments  # with a model of torch's allocator

        peak = with_segments(run, shard, peak)
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
        outside_bytes=sum(size for _, size, _ in uncounted_parts(run, shard)),
    )
    fixed_pool = run.options["kv_cache_memory_bytes"]
    if fixed_pool is not None:
        text = f"{int(fixed_pool):,} of kv_cache_memory_bytes"
        return replace(budget, pool_bytes=int(fixed_pool), pool_formula=text)
    left = requested - deducted_bytes(run, budget)
    return replace(budget, pool_bytes=left, pool_formula=_pool_formula(run, budget))


def _pool_formula(run: Run, budget: RankBudget) -> str:
    """The share of the card, less each figure that is deducted."""
    share = f"{run.options['gpu_memory_utilization']:g} × {run.card_bytes:,} of the card"
    figures = ((budget.figure(name), words) for name, words in _deducted(run))
    return " - ".join([f"ceil({share})", *(f"{size:,} {words}" for size, words in figures)])


def _deducted(run: Run) -> tuple[tuple[str, str], ...]:
    """The figures that vLLM deducts from its share, and their words."""
    figures = ((WEIGHTS, "weights"), (ACTIVATION, "activations"), (NON_TORCH, "outside torch"))
    return (*figures, (GRAPHS, "CUDA graphs")) if counts_graphs(run) else figures


def deducted_bytes(run: Run, budget: RankBudget) -> int:
    """Bytes deducted from the requested share before the cache gets the rest."""
    return sum(budget.figure(name) for name, _ in _deducted(run))


def counts_graphs(run: Run) -> bool:
    """Whether vLLM estimates CUDA graphs and deducts them from the pool."""
    return v1(run) and version(run) >= COUNTED_FROM


def _items(figure: str, parts: Iterable[SourcedBytes]) -> Iterator[ServerItem]:
    return (
        ServerItem(figure, part.name, part.bytes, part.source, part.formula)
        for part in parts
        if part.bytes
    )


def _weight_items(run: Run, shard: ServerShard) -> Iterator[ServerItem]:
    """Parameters, adapter slots and a draft; offloaded parameters are in host memory."""
    on_host = offloaded(run, shard)
    rows = rank_weights(run, shard)
    whole, formulas = dict(rows), rank_formulas(run, shard)
    for name, size in _subtract_offloaded(rows, on_host.size):
        if size:
            text = less(formulas(name), whole[name] - size)
            yield ServerItem(WEIGHTS, name, size, LOADED_SOURCE, text)
    yield from _draft_items(run, shard)
    if v1(run):
        yield from _items(WEIGHTS, adapter_slots(run, shard))
    if on_host.size:
        text = f"{SIMULATED}{on_host.size:,} bytes, each parameter rounded up to a power of two"
        name = "offloaded parameters"
        yield ServerItem(WEIGHTS, name, on_host.pinned, OFFLOAD_SOURCE, text, place=CPU)


def _subtract_offloaded(rows: list[tuple[str, int]], on_host: int) -> Iterator[tuple[str, int]]:
    """The rows minus the bytes on the host, taken from the layers' rows first."""
    for name, size in sorted(rows, key=lambda row: row[0] in NOT_LAYERS) if on_host else rows:
        remaining = max(0, size - on_host)
        on_host -= size - remaining
        yield name, remaining


def _draft_items(run: Run, shard: ServerShard) -> Iterator[ServerItem]:
    """A draft's parameters.

    Multi-token-prediction layers are in the model's weight format, other drafts in its dtype.
    """
    draft, bits = draft_model(run, shard), 8 * element_bytes(run)
    weight_format = find_format("none", None, run.arch.family)
    if draft.quantized:
        weight_format = loaded_format(run_format(run), version(run), run.compute_capability)
    stored = (weight_format.stored(parameter, bits) for parameter in draft.parameters)
    size = sum(size for parts in stored for _, size in parts)
    if size:
        formula = partial(parameters_formula, draft.parameters, weight_format, bits)
        yield ServerItem(WEIGHTS, "draft: parameters", size, LOADED_SOURCE, formula)


def unbudgeted_parts(run: Run, shard: ServerShard) -> Iterator[SourcedBytes]:
    """Tensors that vLLM does not deduct: a draft's buffers, LMCache's, and V0's adapter slots."""
    yield from draft_model(run, shard).buffers
    if run.options.get("lmcache_size"):
        pool = block_pool(run, shard, 0)
        token = ceil_div(pool.block_bytes, max(1, pool.block_size))
        yield part(
            "LMCache: a chunk", CHUNK_SOURCE, ("tokens", LMCACHE_CHUNK), ("bytes", int(token))
        )
    if not v1(run):
        yield from adapter_slots(run, shard)


def start_problem(run: Run, budget: RankBudget, pool: BlockPool) -> str:
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
            f"{_no_share(run, budget, pool, fits) or f'Use {fits:g}.'}"
        )
    others = sum(item.bytes for item in budget.items if item.name == OTHERS)
    if pool.problem and others and by_share:
        return _shared_problem(run, deducted, others, pool)
    if pool.problem and budget.pool_bytes <= 0 and by_share:
        return (
            f"weights + profiling + libraries need {deducted / GIB:,.1f} GiB; "
            f"{requested / GIB:,.1f} GiB available ({share:g} of the card). Use more GPUs or a "
            "smaller quantization."
        )
    if pool.problem:
        return pool.problem
    excess = bytes_without_pool(budget) - others + budget.pool_bytes - free
    if excess > 0:
        fixed_pool = f"kv_cache_memory_bytes={max(0, budget.pool_bytes - excess)}"
        fix = f"--gpu-memory-utilization {fits:g}" if by_share else fixed_pool
        none = _no_share(run, budget, pool, fits) if by_share else ""
        return (
            f"CUDA graphs, captured after the KV cache is allocated, lack {excess / GIB:.2f} GiB. "
            f"{none or f'Use {fix} or less.'}"
        )
    return ""


def _no_share(run: Run, budget: RankBudget, pool: BlockPool, largest: float) -> str:
    """Why no share up to the largest is enough; empty if that one is."""
    least = deducted_bytes(run, budget) + pool.needs_bytes(int(run.options["max_seq_len"]))
    if largest * run.card_bytes >= least:
        return ""
    alone = least + budget.outside_bytes <= run.card_bytes and run.free_bytes < run.card_bytes
    fix = "End what else runs on the card" if alone else "Use a GPU with more memory"
    return f"No share holds the {least / GIB:,.1f} GiB that it needs. {fix}."


def _shared_problem(run: Run, deducted: int, others: int, pool: BlockPool) -> str:
    """Why a rank does not start whose release counts in its share what others hold."""
    share, cache = (
        run.options["gpu_memory_utilization"],
        pool.needs_bytes(run.options["max_seq_len"]),
    )
    least = ceil(100 * (deducted + cache) / run.card_bytes) / 100
    fix = f"Use --gpu-memory-utilization {least:g}" if least <= 1 else "Use another GPU"
    return (
        f"vLLM {run.options['engine_version']} counts in its share what others hold: they and the "
        f"server need {(deducted + cache) / GIB:,.1f} GiB, {others / GIB:,.1f} of it theirs; "
        f"{share:g} of the card is {share * run.card_bytes / GIB:,.1f} GiB. {fix}, which has both."
    )


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


def adapter_slots(run: Run, shard: ServerShard) -> tuple[SourcedBytes, ...]:
    """The adapter slots on a rank; empty without max_lora_rank."""
    rank = run.options.get("max_lora_rank")
    if not rank:
        return ()
    size, slots = element_bytes(run), int(run.options.get("max_loras") or 1)
    slot_bytes = slots * int(rank) * size
    elements: Counter[str] = Counter()
    for name, count in _matrices(run, shard):
        elements[name] += count
    slot = f"{slots} adapters × rank {rank} × {size} bytes"
    parts = []
    for name, count in elements.items():
        text = f"{slot} × {count:,} inputs and outputs"
        parts.append(SourcedBytes(f"adapters: {name}", count * slot_bytes, SLOTS_SOURCE, text))
    vocabulary = _vocabulary_bytes(run, shard, slot_bytes, size)
    parts.append(SourcedBytes("adapters: embedding and head", vocabulary, SLOTS_SOURCE))
    parts.append(SourcedBytes("adapters: indices", _index_bytes(run), SLOTS_SOURCE))
    return tuple(part for part in parts if part.bytes)


def _matrices(run: Run, shard: ServerShard) -> Iterator[tuple[str, int]]:
    """Part, and inputs plus outputs, of every matrix on the rank.

    Experts have slots since 0.11.1 (fused_moe.py).
    """
    for parameter in held(run.arch, shard):
        matrix = parameter.role in (LINEAR, ROUTER) and len(parameter.shape) == 2
        if parameter.layer >= 0 and matrix:
            yield parameter.part or "layers", sum(parameter.shape)
    if version(run) < (0, 11, 1):
        return
    for layer in shard.layers(run.arch):
        if isinstance(layer.mlp, Moe):
            yield "experts", _expert_elements(run, layer.mlp, shard)


def _expert_elements(run: Run, moe: Moe, shard: ServerShard) -> int:
    """Inputs plus outputs of a layer's experts.

    Gate and up have an A each, unless adapters store them as one matrix.
    """
    hidden, inner = run.arch.hidden, int(ceil_div(moe.ffn, shard.expert_tp))
    experts = int(ceil_div(moe.num_experts, shard.ep))
    inputs = 1 if not moe.gated or run.arch.family.startswith(FUSED_ON_DISK) else 2
    return experts * (inputs * hidden + (1 + moe.gated) * inner + inner + hidden)


def has_vocabulary_slots(run: Run) -> bool:
    """Whether the model's embedding and head have adapter slots."""
    name, vllm_version = run.arch.family, version(run)
    if name.startswith(NO_VOCABULARY_SLOTS):
        return False
    return any(
        name.startswith(tuple(families)) and vllm_version >= since
        for since, families in VOCABULARY_SLOTS.items()
    )


def _vocabulary_bytes(run: Run, shard: ServerShard, slot_bytes: int, size: int) -> int:
    """Bytes of slots for the embedding and the head, with the whole vocabulary on every rank.

    Before 0.12.0 adapters could add words: every slot has space for them, and the model's tables
    have more rows (vllm 0.11.0 models/llama.py).
    """
    if not has_vocabulary_slots(run):
        return 0
    arch, slots = run.arch, int(run.options.get("max_loras") or 1)
    extra = EXTRA_WORDS if version(run) < (0, 12, 0) else 0
    tables = (shard.embedding, shard.head)
    total = slot_bytes * (
        tables[0] * (arch.vocab + extra + arch.hidden)
        + tables[1] * (arch.hidden + int(round_up(arch.vocab + extra, WORDS_MULTIPLE)))
    )
    new_words = slots * extra * arch.hidden * size  # in each table
    rows = (extra * slots, extra if arch.head is not None else 0)
    present = zip(rows, tables, strict=True)
    extra_rows = sum(int(ceil_div(count, shard.tp)) for count, table in present if table)
    return total + sum(tables) * new_words + extra_rows * arch.hidden * size


def _index_bytes(run: Run) -> int:
    """Bytes of the adapter index of each token and sequence.

    vllm 0.11.0 punica_base.py, punica_gpu.py.
    """
    tokens, sequences = step_tokens(run), step_sequences(run)
    count = int(run.options.get("max_loras") or 1)
    return 40 * tokens + 24 * sequences + 8 * (tokens + sequences) + 8 * (3 * count + 4)
