"""vLLM: a server that measures a trial run, and gives what is left of its share to the cache.

    pool = gpu_memory_utilization x card - weights - activations - non-torch (- graphs from 0.20 on)

Each term has its own file in this folder. Versions from 0.4 on; what is newer than the
newest that is modelled is taken for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from ...ledger.ledger import CPU
from ...ledger.source import code
from ...ledger.units import GIB
from ...run.engine import Engine
from ...run.run import Run
from ...run.served import POOL, ServerItem, ServerMemory
from ...weights import FormatError
from ...weights.rank_weights import run_scheme
from . import cache, lora, shards, speculative, versions
from .budget import RankBudget, counts_graphs, needs_bytes, problem, rank
from .cache import BlockPool, pool
from .command import command
from .defaults import settled
from .images import pictures
from .non_torch import before
from .shards import stage_layers

PAGES = code("vllm 0.11.0 vllm/v1/core/kv_cache_utils.py get_kv_cache_configs")
SWAPPED = code("vllm 0.7.3 vllm/worker/cache_engine.py: swap_space of the host for each GPU")
OPTIONS: dict[str, Any] = {
    "engine_version": versions.NEWEST, "engine_generation": None, "max_seq_len": None,
    "dtype": "bf16", "quantization": "none", "kv_cache_dtype": "auto",
    "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 1,
    "expert_parallel_size": 1, "decode_context_parallel_size": 1,
    "gpu_memory_utilization": None, "max_num_batched_tokens": None, "max_num_seqs": None,
    "enforce_eager": False, "max_loras": 1, "max_lora_rank": None, "speculative_method": None,
    "speculative_model": None, "num_speculative_tokens": None, "block_size": None,
    "enable_prefix_caching": None, "enable_chunked_prefill": None,
    "max_cudagraph_capture_size": None, "kv_cache_memory_bytes": None, "cpu_offload_gb": 0,
    "swap_space": None, "use_flashinfer_sampler": None, "prompt_len": None, "new_tokens": None,
    "batch_size": None,
}  # fmt: skip


def problems(run: Run) -> Iterator[str]:
    """What vLLM refuses, and what is not modelled."""
    yield from versions.problems(run)
    yield from shards.problems(run)
    yield from cache.problems(run)
    yield from lora.problems(run)
    yield from speculative.problems(run)
    yield from _choices(run)
    try:
        run_scheme(run)
    except FormatError as refused:
        yield str(refused)


def _choices(run: Run) -> Iterator[str]:
    options, new = run.options, versions.v1(run)
    if new and options["swap_space"]:
        yield "inference.swap_space is of vLLM's V0 engine; leave it out"
    if options["kv_cache_memory_bytes"] is not None and versions.version(run) < (0, 10, 2):
        yield "inference.kv_cache_memory_bytes is in vLLM from 0.10.2 on; leave it out"
    if options["decode_context_parallel_size"] > 1 and versions.version(run) < (0, 10, 2):
        yield "inference.decode_context_parallel_size is in vLLM from 0.10.2 on; leave it out"
    how = settled(run).options
    length, tokens = int(how["max_seq_len"]), int(how["max_num_batched_tokens"])
    if tokens < length and not how["enable_chunked_prefill"]:
        yield (f"inference.max_num_batched_tokens={tokens} is less than max_seq_len={length}, and "
               f"prompts are not cut; set it to {length}")  # fmt: skip
    if tokens < int(how["max_num_seqs"]):
        yield (f"inference.max_num_batched_tokens={tokens} is less than max_num_seqs="
               f"{how['max_num_seqs']}; set max_num_seqs to {tokens}")  # fmt: skip


def serve(run: Run) -> ServerMemory:
    """The rank of a pipeline stage; the one with the least room decides the number of blocks."""
    how, stage = settled(run), int(run.stage)
    ranks = [rank(how, number) for number in range(int(how.mesh.pp))]
    pools = (pool(how, one.shard, one.pool_bytes) for one in ranks)
    least = min((one.blocks for one in pools if one.block_bytes), default=0)
    here = ranks[stage]
    cache = pool(how, here.shard, here.pool_bytes, num_blocks=least)
    if not cache.block_bytes:  # a model that keeps nothing, or one that vLLM has no pages for
        here = replace(here, pool_bytes=0)
    length = int(how.options["max_seq_len"])
    return ServerMemory(
        items=(*here.items, *_pool(here, cache), *_host(how)), tokens=cache.tokens,
        token_bytes=cache.token_bytes, max_seq_len=length,
        most_sequences=int(how.options["max_num_seqs"]), sequence_bytes=cache.sequence_bytes,
        needs_bytes=needs_bytes(how, here, cache),
        outside=before(how),
        problem=problem(how, here, cache.problem), command=command(run, OPTIONS),
        notes=tuple(_notes(how, here)),
    )  # fmt: skip


def _pool(here: RankBudget, cache: BlockPool) -> Iterator[ServerItem]:
    """The pool as vLLM announces it; less than a block of it stays unused."""
    allocated = sum(size for _, size in cache.items)
    whole = max(0, here.pool_bytes)
    parts = (*cache.items, ("not used", whole - allocated))
    name = cache.items[0][0] if cache.items else "keys and values"
    yield ServerItem(figure=POOL, name=name, bytes=whole, source=PAGES, parts=parts,
               formula="share of the card - weights - activations - non-torch")  # fmt: skip


def _host(how: Run) -> Iterator[ServerItem]:
    swapped = int(how.options["swap_space"] * GIB)
    if swapped:
        yield ServerItem(figure=POOL, name="swap space", bytes=swapped, source=SWAPPED, place=CPU)


def _notes(how: Run, here: RankBudget) -> Iterator[str]:
    """What the user should know."""
    options, now = how.options, versions.version(how)
    newest = versions.parsed(versions.NEWEST) or now
    if now > newest:
        yield f"vLLM {options['engine_version']} is taken for {versions.NEWEST}"
    tokens, seqs = options["max_num_batched_tokens"], options["max_num_seqs"]
    yield (f"the trial run is highest in {here.moment}, with max_num_batched_tokens={tokens} and "
           f"max_num_seqs={seqs}")  # fmt: skip
    if versions.FIRST_V1 <= now < (0, 11, 1) and options["use_flashinfer_sampler"] is None:
        yield ("with FlashInfer installed, as in the docker image, sampling takes about a third; "
               "then set use_flashinfer_sampler=true")  # fmt: skip
    if how.arch.tower and not pictures(how):
        yield "the trial run of the vision tower is left out; images make it larger"
    if not options["enforce_eager"] and not counts_graphs(how):
        yield "CUDA graphs come on top of gpu_memory_utilization in this version"
    yield from cache.notes(how, here.shard)
    yield from speculative.notes(how)


ENGINE = Engine(
    name="vllm",
    title="vLLM",
    options=OPTIONS,
    generations=versions.ENDED,
    axes=frozenset({"tp", "pp", "ep"}),
    transformers=False,
    problems=problems,
    ledger=lambda run: serve(run).ledger,
    serve=serve,
    stage_layers=stage_layers,
)
