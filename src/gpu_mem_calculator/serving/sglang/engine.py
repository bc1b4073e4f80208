"""SGLang: a share of the memory for weights and cache, the rest for all that runs beside them.

`gpu_memory_utilization` is its mem_fraction_static, `max_num_seqs` its max_running_requests,
`max_seq_len` its context_length, `enforce_eager` its disable_cuda_graph. What SGLang calls GB are
GiB. Files refer to sglang 0.5.18; what differs from 0.4.3 on is told apart by `engine_version`.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from msgspec.structs import replace

from ...cuda.libraries import (
    CONTEXT_SOURCE,
    HANDLE_SOURCE,
    KERNELS_SOURCE,
    context_bytes,
    handle_bytes,
    kernels_bytes,
)
from ...cuda.nccl import nccl
from ...generation.kv_cache import keeps
from ...ledger.ledger import CPU
from ...ledger.mesh import Mesh
from ...ledger.source import ARITHMETIC, code
from ...ledger.units import GIB
from ...model.blocks import Recurrence, StateSpace
from ...run.engine import Engine
from ...run.run import Run
from ...run.served import (
    ACTIVATION,
    GRAPHS,
    NON_TORCH,
    POOL,
    WEIGHTS,
    NamedBytes,
    ServerItem,
    ServerMemory,
)
from ...weights import FormatError
from ...weights.rank_weights import run_scheme
from . import activations, speculative, versions, weights
from .cache import SglangPool, cell, cut, gaps, sized, slots_of_a_request
from .command import command
from .options import SglangOptions, stage_layers
from .versions import COUNTED_DRAFT, NEWEST, SPARE_STATE, said, warm

POOL_CODE = code("sglang 0.5.18 srt/mem_cache/kv_cache_configurator.py _profile_available_bytes: "
                 "free after loading − free before × (1 − mem_fraction_static)")  # fmt: skip
DRAFT_CODE = code("sglang 0.5.18 srt/model_executor/pool_configurator.py: the draft's cache has as "
                  "many tokens as the model's")  # fmt: skip
OFFLOAD = code("sglang 0.5.18 srt/utils/offloader.py: whole parameters in pinned memory")
HICACHE = code("sglang 0.5.18 srt/mem_cache/memory_pool_host.py: hicache_ratio × the pool")
GAPS = code("torch 2.11 c10/cuda/CUDACachingAllocator.cpp: buffers in whole steps of 2 MiB")
NO_MODEL = ("mamba", "mamba2", "jamba", "t5")
CACHES = ("auto", "bf16", "fp8")


def problems(run: Run) -> Iterator[str]:
    """What SGLang would refuse, and what is not modelled."""
    options, tp = run.options, int(run.mesh.tp)
    yield from versions.problems(run)
    yield from speculative.problems(run)
    try:
        run_scheme(run)
    except FormatError as error:
        yield str(error)
    if not keeps(run.arch):
        yield (f"model: {run.arch.family} keeps no cache, and SGLang is modelled with one; use "
               "'vllm'")  # fmt: skip
    if run.arch.family in NO_MODEL:
        yield f"model: SGLang {said(NEWEST)} has no {run.arch.family} model; use 'vllm'"
    if options["max_loras"] and not options["max_lora_rank"]:
        yield "inference.max_loras needs inference.max_lora_rank; set it, or leave max_loras out"
    yield from _pool_problems(run)
    half = run.precision == "fp16_pure"
    if options["kv_cache_dtype"] not in (*CACHES, *(("fp16",) if half else ())):
        yield (f"inference.kv_cache_dtype={options['kv_cache_dtype']!r} is not one of SGLang's; "
               f"use one of {', '.join(CACHES)}")  # fmt: skip
    if tp % int(run.mesh.ep):
        yield (f"inference.expert_parallel_size={run.mesh.ep} does not divide "
               f"tensor_parallel_size={tp}; use {tp}")  # fmt: skip
    if options["enable_dp_attention"] and (run.mesh.dp < 2 or tp % int(run.mesh.dp)):
        yield (f"inference.enable_dp_attention needs a data_parallel_size above 1 that divides "
               f"tensor_parallel_size={tp}, not {run.mesh.dp}; use {tp}")  # fmt: skip


def _pool_problems(run: Run) -> Iterator[str]:
    """Shares of buffers that the model does not have."""
    options, defaults = run.options, ENGINE.options
    mixers = [mixer for layer, _, _ in run.arch.runs for mixer in layer.mixers]
    states = any(isinstance(mixer, StateSpace | Recurrence) for mixer in mixers)
    for key, there, what in (
        ("swa_full_tokens_ratio", any(run.arch.windows), "layers with a window"),
        ("mamba_full_memory_ratio", states, "layers with states"),
    ):
        if options[key] != defaults[key] and not there:
            yield f"inference.{key} is for {what}; {run.arch.family} has none: leave it out"


def serve(run: Run) -> ServerMemory:
    """The rank of a pipeline stage."""
    how = SglangOptions(run=run)
    outside = tuple(_outside(how))
    before = _before(how, outside)
    weights = tuple(_weights(how))
    rest = before - _bytes(weights) - int(before * (1 - how.fraction))
    pool = cut(how, rest)
    beside = (*_drafted(how, pool), *_beside(how, pool))
    pool_items = tuple(_pool(how, pool))
    items = (*weights, *pool_items, *beside, *_host(how, pool))
    total = _bytes(pool_items)
    return ServerMemory(
        items=items, tokens=pool.tokens, token_bytes=pool.cell.full, max_seq_len=how.context,
        most_sequences=pool.requests, needs_bytes=_needs(how, weights, beside, outside),
        sequence_bytes=lambda context: _taken(pool, total, context), outside=outside,
        problem=_problem(how, before, _bytes(weights), rest, pool, _bytes(beside)),
        command=command(how), notes=tuple(_notes(how, pool)),
    )  # fmt: skip


def _bytes(items: tuple[ServerItem, ...]) -> int:
    return sum(item.bytes for item in items if item.place != CPU)


def _taken(pool: SglangPool, total: int, context: int) -> int:
    """What one sequence takes of the pool, by the buffer that it fills most."""
    share = pool.share(context)
    return 2**62 if share == float("inf") else -int(-share * total // 1)


def _outside(how: SglangOptions) -> Iterator[NamedBytes]:
    """What is there before the weights: CUDA's context, torch's kernels where another part runs
    one, and NCCL for the ranks of a model; copies of it do not talk.
    """
    run = how.run
    yield "CUDA context", context_bytes(run), str(CONTEXT_SOURCE)
    if warm(run):
        yield "torch's kernels", kernels_bytes(run), str(KERNELS_SOURCE)
    alone = replace(run, mesh=Mesh(dp=1, tp=run.mesh.tp, pp=run.mesh.pp))
    yield from nccl(alone, streams=False)


def _before(how: SglangOptions, outside: tuple[NamedBytes, ...]) -> int:
    """SGLang's "avail mem" before loading: what was given, else what is free on an idle card."""
    run = how.run
    if run.free_bytes < run.card_bytes:
        return run.free_bytes
    return run.card_bytes - sum(size for _, size, _ in outside)


def _weights(how: SglangOptions) -> Iterator[ServerItem]:
    """What loading adds, as "mem usage" has it."""
    for name, size, source in weights.loaded(how):
        if size:
            yield ServerItem(figure=WEIGHTS, name=name, bytes=size, source=source)


def _pool(how: SglangOptions, pool: SglangPool) -> Iterator[ServerItem]:
    counted = how.version >= COUNTED_DRAFT
    for name, size, formula in pool.parts:
        yield ServerItem(figure=POOL, name=name, bytes=size, source=POOL_CODE, formula=formula)
    if counted and pool.draft_bytes:
        yield ServerItem(figure=POOL, name="draft: keys and values", bytes=pool.draft_bytes,
                   source=DRAFT_CODE)  # fmt: skip


def _drafted(how: SglangOptions, pool: SglangPool) -> Iterator[ServerItem]:
    """Before 0.5.14 a draft came out of what the pool had left."""
    if how.version < COUNTED_DRAFT and pool.draft_bytes:
        yield ServerItem(figure=WEIGHTS, name="draft: parameters", bytes=weights.draft_bytes(how),
                   source=ARITHMETIC)  # fmt: skip
        yield ServerItem(figure=POOL, name="draft: keys and values", bytes=pool.draft_bytes,
                   source=DRAFT_CODE)  # fmt: skip


def _beside(how: SglangOptions, pool: SglangPool) -> Iterator[ServerItem]:
    """What mem_fraction_static leaves room for."""
    rows = (
        *((ACTIVATION, *named) for named in activations.beside(how, pool.requests)),
        (ACTIVATION, "between the pool's buffers", gaps(how, pool), "", GAPS),
        *((GRAPHS, *named) for named in activations.graph_parts(how, pool.requests)),
        (NON_TORCH, "cuBLAS handle", handle_bytes(how.run), "", HANDLE_SOURCE),
    )  # fmt: skip
    for figure, name, size, formula, source in rows:
        if size:
            yield ServerItem(figure=figure, name=name, bytes=size, formula=formula, source=source)


def _host(how: SglangOptions, pool: SglangPool) -> Iterator[ServerItem]:
    """What lies in the host's memory."""
    away = weights.offloaded(how)
    if away:
        yield ServerItem(figure=WEIGHTS, name="offloaded parameters", bytes=away, place=CPU,
                   source=OFFLOAD)  # fmt: skip
    ratio = how.run.options["hicache_ratio"]
    if ratio:
        size = int(float(ratio) * pool.bytes)
        yield ServerItem(
            figure=POOL, name="cache on the host", bytes=size, place=CPU, source=HICACHE
        )


def _needs(
    how: SglangOptions,
    weights: tuple[ServerItem, ...],
    beside: tuple[ServerItem, ...],
    outside: tuple[NamedBytes, ...],
) -> int:
    """Room for one sequence of the context; more where the share is given and leaves less."""
    tokens = -(-how.context // how.page) * how.page
    one = sized(how, cell(how), tokens, slots_of_a_request(how) if cell(how).state else 0)
    static = _bytes(weights) + max(one.bytes, _shared(how, one)) + one.draft_bytes
    table = (one.requests + 1) * activations.row_bytes(how)
    least = static + table + sum(i.bytes for i in beside if i.name != activations.TABLE)
    if how.run.options["gpu_memory_utilization"] is not None:  # the pool takes all of its share
        rest = least - static
        least = max(least, ceil(static / how.fraction))
        least = max(least, ceil(rest / (1 - how.fraction))) if how.fraction < 1 else least
    return least + sum(size for _, size, _ in outside)


def _shared(how: SglangOptions, one: SglangPool) -> int:
    """The least pool whose part for states, and whose rest, hold those of one sequence."""
    ratio = float(how.run.options["mamba_full_memory_ratio"])
    states = one.slots * one.cell.state
    if not states or not ratio:
        return 0
    spare = one.cell.state if how.version >= SPARE_STATE else 0
    rest = one.bytes - states - one.cell.state  # a slot is there for padding
    return ceil((1 + ratio) * max((states + spare) / ratio, rest))


def _problem(
    how: SglangOptions, before: int, weights: int, rest: int, pool: SglangPool, beside: int
) -> str:
    """Why it would not start, in SGLang's words where it has some."""
    if weights > before:
        return (f"CUDA out of memory while loading: the weights take {_gib(weights)} GiB of "
                f"{_gib(before)}; use more GPUs or fewer bits")  # fmt: skip
    share = f"--mem-fraction-static={how.fraction:.3g}"
    if rest <= 0 or pool.tokens <= 0:
        least = weights / before
        return (f"Not enough memory. Please try to increase --mem-fraction-static: weights take "
                f"{least:.3f} of what is free, {share} leaves no room for a cache")  # fmt: skip
    if pool.cell.state and pool.requests <= 0:
        return f"Not enough memory for the states of one request under {share}; increase it"
    slack = before - weights - pool.bytes - (
        pool.draft_bytes if how.version >= COUNTED_DRAFT else 0)  # fmt: skip
    if beside > slack:
        fits = max(0, int(100 * (before - beside) / before)) / 100
        return (f"CUDA out of memory: {share} leaves {_gib(slack)} GiB for graphs, tables and a "
                f"prefill of {how.chunk} tokens, which take {_gib(beside)}; lower it to "
                f"{fits:g}, or chunked_prefill_size")  # fmt: skip
    return ""


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}"


def _notes(how: SglangOptions, pool: SglangPool) -> Iterator[str]:
    yield from versions.notes(how.run)
    if how.run.options["gpu_memory_utilization"] is None:
        yield f"mem_fraction_static is {how.fraction:.3g}, SGLang's choice for this card"
    if pool.tokens and pool.tokens < how.context:
        yield (f"the cache holds {pool.tokens:,} tokens, less than the context of "
               f"{how.context:,}; SGLang starts and refuses longer requests")  # fmt: skip
    if not how.run.options["disable_radix_cache"]:
        yield "the radix cache keeps prefixes in the pool itself; it takes no memory of its own"
    if pool.window_tokens:
        yield (f"layers with a window have {pool.window_tokens:,} tokens of their own "
               "(swa_full_tokens_ratio)")  # fmt: skip
    if pool.slots:
        yield (f"the states have {pool.slots:,} slots, {slots_of_a_request(how)} for each running "
               "request (mamba_full_memory_ratio)")  # fmt: skip
    if how.version < COUNTED_DRAFT and pool.draft_bytes:
        yield ("before 0.5.14 SGLang does not count the draft when it cuts the pool: lower "
               "mem_fraction_static if it runs out of memory")  # fmt: skip


ENGINE = Engine(
    name="sglang",
    title="SGLang",
    options={
        "engine_version": said(NEWEST), "batch_size": None, "prompt_len": None, "new_tokens": None,
        "max_seq_len": None, "dtype": "bf16", "quantization": "none", "kv_cache_dtype": "auto",
        "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 1,
        "expert_parallel_size": 1, "enable_dp_attention": False, "gpu_memory_utilization": None,
        "max_num_seqs": None, "max_total_tokens": None, "chunked_prefill_size": None,
        "cuda_graph_max_bs": None, "page_size": None, "enforce_eager": False, "max_loras": None,
        "max_lora_rank": None, "speculative_method": None, "speculative_model": None,
        "num_speculative_tokens": None, "cpu_offload_gb": None, "swa_full_tokens_ratio": 0.8,
        "mamba_full_memory_ratio": 0.9, "disable_radix_cache": False, "hicache_ratio": None,
    },
    problems=problems,
    ledger=lambda run: serve(run).ledger,
    stage_layers=stage_layers,
    serve=serve,
)  # fmt: skip
