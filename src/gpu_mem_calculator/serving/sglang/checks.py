"""What SGLang refuses, what is not modelled, and why a server would not start, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ...ledger.units import GIB
from ...models.arch.blocks import Recurrence, StateSpace
from ...run.releases import version_text
from ...run.run import Run
from ...run.weights.rank_weights import adapter_problems, format_problems
from ...training.generation.kv_cache import has_cache
from .. import USUAL, other_server
from . import speculative, versions
from .cache import GB, SglangPool, host_pools
from .options import OPTIONS, SglangOptions
from .row import ROW
from .versions import COUNTED_DRAFT, HOST_STATES, HOST_WINDOWS, NEWEST, SMALLER_HOST

CACHES = ("auto", "bf16", "fp8")
# sglang 0.5.20 srt/models/mamba.py, mamba2.py, falcon_mamba.py: models without attention
STATES_ALONE = ("mamba", "mamba2", "falcon_mamba")


def problems(run: Run) -> Iterator[str]:
    """What SGLang would refuse, and what is not modelled."""
    options, tp = run.options, int(run.mesh.tp)
    yield from versions.problems(run)
    yield from speculative.problems(run)
    yield from format_problems(run)
    family, newest = run.arch.family, version_text(NEWEST)
    if family in STATES_ALONE:
        since = f"model: SGLang serves {family} from 0.5.20 on, which is not modelled"
        yield f"{since}; use {other_server(family)}"
    elif family in ROW.no_code:
        yield f"model: SGLang {newest} has no {family} model; use {other_server(family)}"
    elif not has_cache(run.arch):
        yield f"model: {family} keeps no cache, and SGLang is modelled with one; use {USUAL!r}"
    yield from adapter_problems(run)
    yield from _pool_problems(run)
    half, cache = run.precision == "fp16_pure", options["kv_cache_dtype"]
    if cache not in (*CACHES, *(("fp16",) if half else ())):
        known = f"is not one of SGLang's; use one of {', '.join(CACHES)}"
        yield f"inference.kv_cache_dtype={cache!r} {known}"
    ep, dp, ranks = int(run.mesh.ep), int(run.mesh.dp), f"tensor_parallel_size={tp}"
    if tp % ep:
        yield f"inference.expert_parallel_size={ep} does not divide {ranks}; use {tp}"
    if options["enable_dp_attention"] and (dp < 2 or tp % dp):
        needs = "inference.enable_dp_attention needs a data_parallel_size above 1 that divides"
        yield f"{needs} {ranks}, not {dp}; use {tp}"


def _pool_problems(run: Run) -> Iterator[str]:
    """Ratios of the pool that are set for layers which the model does not have."""
    mixers = [mixer for layer, _, _ in run.arch.runs for mixer in layer.mixers]
    states = any(isinstance(mixer, StateSpace | Recurrence) for mixer in mixers)
    for key, exists, what in (
        ("swa_full_tokens_ratio", any(run.arch.windows), "layers with a window"),
        ("mamba_full_memory_ratio", states, "layers with states"),
    ):
        if run.options[key] != OPTIONS[key] and not exists:
            yield f"inference.{key} is for {what}; {run.arch.family} has none: leave it out"


class StartBytes(Struct, frozen=True):
    """What decides whether a server starts, in bytes.

    - `available`: free memory before loading
    - `weights`: what loading takes
    - `pool_limit`: what mem_fraction_static leaves for the pool
    - `other`: activations, graphs and handles, which must fit into the rest
    """

    available: int
    weights: int
    pool_limit: int
    other: int


def start_problem(setting: SglangOptions, pool: SglangPool, start: StartBytes) -> str:
    """Why the server would not start, in SGLang's words where it has some; empty if it starts."""
    available, weights, other = start.available, start.weights, start.other
    if weights > available:
        return (
            f"weights need {_gib(weights)} GiB; {_gib(available)} GiB available. Use more GPUs or "
            "a smaller quantization."
        )
    share = f"--mem-fraction-static={setting.fraction:.3g}"
    if start.pool_limit <= 0 or pool.tokens <= 0:
        least = weights / available
        return (
            f"weights need {least:.3f} of the free memory; {share} leaves none for the KV cache. "
            "Increase it, use more GPUs or a smaller quantization."
        )
    if pool.cell.state and pool.requests <= 0:
        return f"{share} leaves no memory for the states of one request. Increase it."
    draft = pool.draft_bytes if setting.version >= COUNTED_DRAFT else 0
    slack = available - weights - pool.bytes - draft
    if other > slack:
        fits = max(0, int(100 * (available - other) / available)) / 100
        return (
            f"CUDA graphs and a prefill of {setting.chunk:,} tokens need {_gib(other)} GiB; "
            f"{share} leaves {_gib(slack)} GiB. Lower it to {fits:g}, or lower "
            "chunked_prefill_size."
        )
    return _host_problem(setting, pool)


def _host_problem(setting: SglangOptions, pool: SglangPool) -> str:
    """Why SGLang refuses a hierarchical cache, by release."""
    copies, now = host_pools(setting, pool), setting.version
    kinds = (
        ("states", pool.slots, HOST_STATES),
        ("a pool for windows", pool.window_tokens, HOST_WINDOWS),
    )
    for what, exists, since in kinds:
        if copies and exists and now < since:
            has = f"SGLang before {version_text(since)} has no hierarchical cache for models with"
            return f"{has} {what}. Leave --enable-hierarchical-cache out."
    fixed = setting.run.options["hicache_size"]
    if copies and now < SMALLER_HOST and copies[0].count <= pool.tokens:
        key, least = "--hicache-ratio", "a ratio above 1"
        if fixed:
            least = f"{pool.tokens * copies[0].each // GB + 1} or more"
            key = f"--hicache-size {fixed}"
        return (
            f"{key} holds {copies[0].count:,} tokens, the GPU {pool.tokens:,}; SGLang before "
            f"{version_text(SMALLER_HOST)} refuses a smaller cache on the host. Use {least}."
        )
    return ""


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}"
