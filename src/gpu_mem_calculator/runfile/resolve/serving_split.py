"""How a server spreads a model over GPUs: tensor parallelism first, then pipeline or data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from ...models.arch.arch import Arch
from ...models.arch.blocks import Attention, LatentAttention
from ...run.engine import Engine

TENSOR, PIPELINE, DATA = (f"{axis}_parallel_size" for axis in ("tensor", "pipeline", "data"))
GPUS_PER_NODE = 8  # tensor parallelism stays within a node


def tensor_parallel_problem(arch: Arch, tp: int) -> str:
    """Why `tp` ranks cannot share the attention heads; empty where they can.

    Each rank needs whole heads; key-value heads may be replicated.
    """
    setting = f"inference.{TENSOR}={tp}"
    for mixer in {mixer for layer, _, _ in arch.runs for mixer in layer.mixers}:
        if not isinstance(mixer, Attention | LatentAttention):
            continue
        heads, shared = mixer.heads, getattr(mixer, "kv_heads", 0)
        if heads % tp:
            divisors = [n for n in range(1, heads + 1) if heads % n == 0]
            near = sorted(sorted(divisors, key=lambda n: abs(n - tp))[:2])
            return f"{setting} does not divide {heads} heads; try {' or '.join(map(str, near))}"
        if shared and shared % tp and tp % shared:
            fix = f"nor is a multiple of them; try {shared}"
            return f"{setting} neither divides {shared} key-value heads {fix}"
    return ""


def shards_layers(engine: Engine) -> bool:
    """Whether the engine has tensor parallelism; llama.cpp gives each GPU some of the layers."""
    return TENSOR in engine.options and engine.serve is not None


def splits(arch: Arch, engine: Engine, num_gpus: int) -> Iterator[dict[str, int]]:
    """Parallel sizes whose product is `num_gpus`, the widest tensor parallelism first.

    The rest of the GPUs are pipeline stages where the engine has them, else data-parallel replicas.
    """
    rest_axis = next((axis for axis in (PIPELINE, DATA) if axis in engine.options), None)
    widest = min(num_gpus, GPUS_PER_NODE) if rest_axis else num_gpus
    for tp in range(widest, 0, -1):
        rest = num_gpus // tp
        if num_gpus % tp or (rest > 1 and rest_axis is None) or tensor_parallel_problem(arch, tp):
            continue
        if rest_axis == PIPELINE and rest > len(arch.layers):
            continue
        yield {TENSOR: tp, **({rest_axis: rest} if rest_axis and rest > 1 else {})}


def spread(
    arch: Arch, engine: Engine, options: Mapping[str, Any], given: Mapping[str, Any], num_gpus: int
) -> dict[str, int]:
    """The parallel sizes for a number of GPUs, where the run file leaves them out; else empty."""
    if not shards_layers(engine) or given.get(TENSOR):
        return {}
    replicas = 1 if options.get("enable_dp_attention") else options.get(DATA) or 1
    ranks, rest = divmod(num_gpus, replicas * (given.get(PIPELINE) or 1))
    if rest or ranks == 1:
        return {}
    if given.get(PIPELINE):
        return {} if tensor_parallel_problem(arch, ranks) else {TENSOR: ranks}
    return next(splits(arch, engine, ranks), {})


def server_gpus(options: Mapping[str, Any]) -> int:
    """GPUs of a server. Data-parallel attention runs on the tensor-parallel ranks."""
    axes = [TENSOR, PIPELINE, *([] if options.get("enable_dp_attention") else [DATA])]
    return prod(options.get(axis) or 1 for axis in axes)
