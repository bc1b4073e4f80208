"""How many sequences fit at which context, and what changes of a server would bring.

On a server sequences share the cache pool; with transformers they share the whole card.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from .. import catalog
from ..run.served import ServerMemory
from .batch_bytes import Lines, batch_lines
from .calculator import Estimate, full_estimate, verdict
from .errors import InputError
from .fit_verdict import FITS, OPEN, SHORT
from .models import MemoryResult, RunFile
from .resolve_inference import find_server
from .runfile import as_dict, read, with_settings

CONTEXTS = tuple(2**power for power in range(10, 21))
CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
MOST_TP = 64
AT_ONCE = 10**6  # sequences, where only memory limits them
Used = Callable[[int], int]  # bytes that a number of sequences takes
Capacity = tuple[Used, int, int]  # bytes taken, bytes there are, sequences that may run at once


class CapacityMatrix(Struct, frozen=True, kw_only=True):
    """Context by concurrency: the share of the room that is taken, row by row.

    Above 1 it does not fit; None where the server would not run so many at once. `most` is the
    largest number of sequences at each context. With data parallelism every replica has this room.
    """

    contexts: tuple[int, ...]
    concurrencies: tuple[int, ...]
    shares: tuple[tuple[float | None, ...], ...]
    most: tuple[int, ...]


def matrix(
    estimate: Estimate, contexts: Sequence[int] = (), concurrencies: Sequence[int] = ()
) -> CapacityMatrix:
    """The table of contexts and sequences; the defaults are powers of two up to the longest."""
    longest = _longest(estimate)
    wanted = tuple(contexts) or (*(c for c in CONTEXTS if c < longest), longest)
    counts = tuple(concurrencies) or CONCURRENCIES
    rows, most = [], []
    for used, limit, at_once in _capacities(estimate, wanted):
        each = [_share(used(count), limit) for count in counts]
        rows.append(
            tuple(
                share if count <= at_once else None
                for count, share in zip(counts, each, strict=True)
            )
        )
        most.append(_most(used, limit, at_once))
    return CapacityMatrix(
        contexts=wanted, concurrencies=counts, shares=tuple(rows), most=tuple(most)
    )


def _share(used: int, limit: int) -> float:
    """The share of `limit` bytes that is used; 0 for models that cache nothing."""
    if limit > 0:
        return used / limit
    return float("inf") if used else 0.0


def _longest(estimate: Estimate) -> int:
    if estimate.served:
        return estimate.served[0].max_seq_len
    run = estimate.resolved.run
    return int(run.options.get("max_seq_len") or run.arch.max_seq_len)


def _most(used: Used, limit: int, at_once: int) -> int:
    """The largest number of sequences that fits."""
    low, high = 0, at_once
    while low < high:
        middle = (low + high + 1) // 2
        if used(middle) <= limit:
            low = middle
        else:
            high = middle - 1
    return low


def _capacities(estimate: Estimate, contexts: Sequence[int]) -> Iterator[Capacity]:
    """The capacity at each context."""
    if estimate.served:
        longest = _longest(estimate)
        for context in contexts:
            used, limit, at_once = _pool_capacity(estimate.served, context)
            yield used, limit, at_once if context <= longest else 0
        return
    resolved = estimate.resolved
    outside = sum(size for _, size, _ in resolved.outside_torch)
    for each in batch_lines(resolved, contexts):
        used = partial(_card_bytes, each, outside)
        yield used, resolved.hardware.memory_bytes, AT_ONCE


def _pool_capacity(served: Sequence[ServerMemory], context: int) -> Capacity:
    """The capacity of a server's pool at a context: that of the stage with the least."""
    tightest = max(served, key=lambda one: _share(one.sequence_bytes(context), one.room_bytes))
    each = tightest.sequence_bytes(context)
    return lambda count: count * each, tightest.room_bytes, tightest.most_sequences


def _card_bytes(lines: Lines, outside: int, count: int) -> int:
    """Bytes of `count` sequences under transformers: the highest instant, and outside torch."""
    return outside + max((first + (count - 1) * more for first, more in lines), default=0)


class ServingChange(Struct, frozen=True, kw_only=True):
    """One thing changed, and what comes of it; `problem` where it is not possible."""

    title: str
    setting: tuple[str, ...]
    device_bytes: int = 0
    kv_tokens: int = 0
    max_concurrency: float = 0.0
    fits: bool = False
    verdict: str = SHORT
    problem: str = ""


# Changes that people try first: the title, and keys that the engine has and the run leaves out.
CHANGES: tuple[tuple[str, dict[str, str]], ...] = (
    ("KV cache in fp8", {"kv_cache_dtype": "fp8"}),
    ("KV cache in q8_0", {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}),
    ("weights in fp8", {"quantization": "fp8"}),
    ("weights in nf4", {"quantization": "nf4"}),
    ("weights in q4_k_m", {"quantization": "q4_k_m"}),
)
EXPERT_KEY = "expert_parallel_size"


def what_ifs(file: RunFile) -> list[ServingChange]:
    """One change at a time: a smaller cache, smaller weights, expert parallelism, more GPUs or
    fewer. Changes that change nothing or are refused are left out.
    """
    assert file.inference is not None
    engine, given = find_server(file.inference), as_dict(file.inference)
    candidates = [
        (title, tuple(f"inference.{key}={value}" for key, value in keys.items()))
        for title, keys in CHANGES
        if all(key in engine.options and key not in given for key in keys)
    ]
    ranks = _ranks(file)
    if ranks > 1 and EXPERT_KEY in engine.options and EXPERT_KEY not in given:
        candidates.append(("expert parallelism", (f"inference.{EXPERT_KEY}={ranks}",)))
    counts = (2 * ranks, *([ranks // 2] if ranks > 1 else []))
    candidates += [(f"over {_gpus(count)}", _gpu_settings(file, count)) for count in counts]
    changes = [try_settings(file, title, settings) for title, settings in candidates]
    same = taken_now(file)
    return [
        change
        for change in changes
        if not change.problem and (change.device_bytes, change.kv_tokens) != same
    ]


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count > 1)}"


def _has_tensor_parallelism(file: RunFile) -> bool:
    """Whether the engine shards layers over GPUs; llama.cpp gives each GPU some of the layers."""
    assert file.inference is not None
    return "tensor_parallel_size" in find_server(file.inference).options


def _ranks(file: RunFile) -> int:
    """GPUs that share each layer, or, with llama.cpp, that each have some of the layers."""
    if not _has_tensor_parallelism(file):
        return file.hardware.num_gpus or 1
    return file.inference.tensor_parallel_size or 1 if file.inference else 1


def taken_now(file: RunFile) -> tuple[int, int]:
    """Bytes that the run takes by the ledger, and the tokens of its cache; (0, 0) if refused."""
    try:
        return _taken(full_estimate(_with_settings(file, ()), replay=False).result)
    except InputError:
        return 0, 0


def _taken(result: MemoryResult) -> tuple[int, int]:
    tokens = 0 if result.serving is None else result.serving.kv_tokens
    return result.allocated_bytes + result.outside_torch_bytes, tokens


def try_settings(file: RunFile, title: str, settings: tuple[str, ...]) -> ServingChange:
    """The figures of a run with some settings by the ledger, and its verdict."""
    data = _with_settings(file, settings)
    try:
        result = full_estimate(data, replay=False).result
    except InputError as error:
        return ServingChange(title=title, setting=settings, problem=error.problems[0])
    (taken, tokens), serving = _taken(result), result.serving
    word = verdict(data) if serving is None else result.verdict
    return ServingChange(
        title=title,
        setting=settings,
        device_bytes=taken,
        fits=word in (FITS, OPEN),
        verdict=word,
        kv_tokens=tokens,
        max_concurrency=0.0 if serving is None else serving.max_concurrency,
    )


def fewest_gpus(file: RunFile) -> ServingChange | None:
    """The smallest power of two of tensor-parallel GPUs on which the server starts, at most 64."""
    tp = 1
    while tp <= MOST_TP:
        change = try_settings(file, _gpus(tp), _gpu_settings(file, tp))
        if change.fits:
            return change
        tp *= 2
    return None


def _gpu_settings(file: RunFile, ranks: int) -> tuple[str, ...]:
    """The settings that run a model on `ranks` GPUs."""
    if not _has_tensor_parallelism(file):
        return (f"hardware.num_gpus={ranks}",)
    given = as_dict(file.inference)
    rest = given.get("pipeline_parallel_size", 1)
    rest *= 1 if given.get("enable_dp_attention") else given.get("data_parallel_size", 1)
    settings = [f"inference.tensor_parallel_size={ranks}"]
    experts = given.get(EXPERT_KEY, 1) * ranks // _ranks(file)
    if given.get(EXPERT_KEY, 1) > 1:  # expert parallelism grows with the number of ranks
        settings.append(f"inference.{EXPERT_KEY}={max(1, experts)}")
    if file.hardware.num_gpus is not None:
        settings.append(f"hardware.num_gpus={ranks * rest}")
    return tuple(settings)


def _with_settings(file: RunFile, settings: Sequence[str]) -> dict[str, Any]:
    data = as_dict(file)
    if "hardware" in data:  # nodes follow from the number of GPUs
        data = {
            **data,
            "hardware": {
                k: v for k, v in data["hardware"].items() if k not in ("num_nodes", "gpus_per_node")
            },
        }
    return with_settings(data, settings)


def largest_models(data: dict[str, Any], most: int = 10) -> list[ServingChange]:
    """The largest presets that the run's cards can serve, largest first, at most `most`."""
    rows = [catalog.find("index", name) for name in catalog.names("index")]
    sized = sorted((row for row in rows if row), key=lambda row: -row["num_parameters"])
    changes = []
    configs = set()
    for row in sized:
        if row["config"] in configs:
            continue
        configs.add(row["config"])
        file = read({**data, "model": {"name": row["name"]}})
        assert file.inference is not None
        pool = find_server(file.inference).serve is not None
        change = try_settings(file, row["title"], (f"model.name={row['name']}",))
        if change.fits and (change.max_concurrency >= 1 or not pool):
            changes.append(change)
        if len(changes) == most:
            break
    return changes
