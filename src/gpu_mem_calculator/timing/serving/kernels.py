"""Seconds of a server's kernels on one rank, from curves that were measured on cards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import sqrt

from msgspec import Struct

from ...ledger.words import words
from ..curves.collectives import collective_seconds
from ..curves.grid import Axis, Grid
from ..curves.machine import Machine
from ..training.estimates import SUSTAINED_ELSEWHERE
from .parts import LAST, WeightUse
from .roofline import QUANTIZED, SHORT_SUM, CardRates
from .work import StageWork, cache_bytes


class ServingGpu(Struct, frozen=True, kw_only=True):
    """A card: its curves, its rates by data sheet, and its compute capability."""

    machine: Machine
    rates: CardRates
    capability: str


class CurveOf(Struct, frozen=True):
    """The curve of matrix products of a unit, the unit it was measured on, bytes of a weight."""

    name: str
    unit: str
    size: float


PLAIN = CurveOf("bf16", "bf16", 2.0)
CURVES: Mapping[str, CurveOf] = {
    **dict.fromkeys(("bf16", "fp16", "fp32", QUANTIZED, SHORT_SUM), PLAIN),
    **dict.fromkeys(("fp8", "int8"), CurveOf("fp8", "fp8", 1.0)),
    "fp4": CurveOf("nvfp4", "fp4", 9 / 16),
}
# llama.cpp unpacks weights to 16 bits for the products of prompts, or has kernels of its own that
# are about as fast: ggml/src/ggml-cuda/ggml-cuda.cu ggml_cuda_op_mul_mat_cublas, mmq.cu.
UNPACKED = {QUANTIZED: SHORT_SUM}
DENSE_MATRICES = 4  # of a layer: query, key and value in one, output, gate and up in one, down
ATTENTION_MATRICES = 2  # of a layer whose feed-forward has experts
LARGEST_SIDE = 16384.0  # of a product whose share is read; larger ones reach the same
# Grouped products of the experts of a layer with all that belongs to them: the share of the
# roofline by rows of an expert, and the least seconds. The median of balanced rows that read over
# and under 64 MiB. aiconfigurator-core 0.12.0, {h100_sxm,b200_sxm}/moe/vllm/0.24.0/moe_perf.
EXPERT_ROWS = (0.5, 2.0, 8.0, 32.0, 128.0, 512.0)
EXPERT_SHARES: Mapping[str, tuple[float, ...]] = {
    "bf16": (0.61, 0.63, 0.73, 0.65, 0.43, 0.32),
    "fp8": (0.56, 0.62, 0.70, 0.61, 0.37, 0.22),
    "nvfp4": (0.45, 0.51, 0.51, 0.42, 0.28, 0.20),
}


def falling(shares: Sequence[float]) -> list[float]:
    """The shares without their rises: more rows read as many bytes or more, and take as long or
    longer. Between the highest that comes later and the lowest that came before, by their
    geometric mean.
    """
    lowest = list(accumulate(shares, min))
    highest = list(accumulate(reversed(shares), max))[::-1]
    return [sqrt(low * high) for low, high in zip(lowest, highest, strict=True)]


EXPERT_SECONDS = 4e-5
EXPERT_GRIDS = {
    name: Grid([Axis(EXPERT_ROWS, continues=False)], falling(shares))
    for name, shares in EXPERT_SHARES.items()
}
HEAD_DIM = 128  # for which the attention curve is read
LONG = 16384  # keys with which a kernel reaches its highest rate
# Elementwise kernels of a layer, each a launch in a CUDA graph: two additions with norm, rotary
# embedding, the write to the cache, activation. vLLM 0.11 model_executor/models/llama.py.
SMALL_KERNELS = 5
SMALL_KERNEL_SECONDS = 3e-6  # the least of any kernel in the curves of matrix products: 2.6 us
# What they read and write of a token, over its hidden state: 8 for the additions with norm, 2.5 for
# the rotary embedding, 3 for each of the 3.5 times wider activations, half of it sharded.
ELEMENTWISE = 20.0
ELEMENTWISE_SHARE = 0.65  # of the memory bandwidth; the H200 measures 64 to 72 %


class DecodeAttention(Struct, frozen=True):
    """Attention of a decode step: seconds of an empty cache, and the share of the bandwidth at
    which a large one is read.
    """

    seconds: float
    share: float


# By the curve's card: the median of rows under 256 KiB and over 512 MiB of 16-bit cache.
# aiconfigurator-core 0.12.0, attention/vllm/*/generation_attention_perf.parquet.
OTHER_ATTENTION = DecodeAttention(11e-6, 0.88)
DECODE_ATTENTION: Mapping[str, DecodeAttention] = {
    "8.0": DecodeAttention(13.4e-6, 0.74),
    "8.9": DecodeAttention(9.2e-6, 0.87),
    "9.0": DecodeAttention(11.6e-6, 0.91),
    "10.0": DecodeAttention(9.1e-6, 0.88),
    "12.0": DecodeAttention(9.1e-6, 0.95),
    # Not measured: between those that are.
    **dict.fromkeys(words("6.0 6.1 7.0 7.2 7.5 8.6 8.7 10.3 11.0 12.1"), OTHER_ATTENTION),
}
# All-reduce in one kernel over NVLink, which servers use for small tensors: seconds of 8 KiB and of
# 512 KiB, by ranks. aiconfigurator-core 0.12.0, h100_sxm/comm/vllm/0.24.0/custom_allreduce_perf.
ONE_KERNEL: Mapping[int, tuple[float, float]] = {
    2: (4.5e-6, 8.3e-6),
    4: (4.8e-6, 12.8e-6),
    8: (5.3e-6, 15.0e-6),
}
FAST_LINK = 2e11  # bytes a second; NVLink 3 and later


def matrix_seconds(stage: StageWork, used: str, tokens: float, gpu: ServingGpu) -> float:
    """Products of `tokens` tokens with the weights of one use, one kernel after another."""
    parts = [part for part in stage.parts if part.used == used and part.bytes]
    dense = sum(part.bytes for part in parts if part.chosen == 1) or 1.0
    has_experts = any(part.chosen < 1 for part in parts)
    total = 0.0
    for part in parts:
        if part.chosen < 1:
            total += _expert_seconds(part, tokens, stage.layers, gpu)
            continue
        each = ATTENTION_MATRICES if has_experts else DENSE_MATRICES
        matrices = 1.0 if used == LAST else each * stage.layers * part.bytes / dense
        total += _dense_seconds(part, tokens, max(1.0, matrices), gpu)
    return total


def _bound(part: WeightUse, tokens: float, gpu: ServingGpu) -> float:
    """The roofline of some weights."""
    read = part.read(tokens) / gpu.rates.memory_bytes_per_second
    flops = part.products(tokens)
    unit = UNPACKED.get(part.unit, part.unit)
    return max(read, flops / gpu.rates.rate(unit) if flops else 0.0)


def _expert_seconds(part: WeightUse, tokens: float, layers: int, gpu: ServingGpu) -> float:
    """Grouped products of the experts that tokens are routed to."""
    name = CURVES[part.unit].name
    rows = tokens * part.spread * part.chosen
    share = float(EXPERT_GRIDS[name].at(rows))
    return max(layers * EXPERT_SECONDS, _bound(part, tokens, gpu) / share)


def _dense_seconds(part: WeightUse, tokens: float, matrices: float, gpu: ServingGpu) -> float:
    """The roofline of some weights over the share of it that a product of their size reaches."""
    rows = max(1.0, tokens * part.spread)
    curve = CURVES[part.unit]
    curve = curve if curve.name in gpu.machine.matmul else PLAIN
    side = min(LARGEST_SIDE, sqrt(max(1024.0, part.read(tokens) / matrices / curve.size)))
    measured = gpu.machine.matmul[curve.name].at(rows, side, side)
    roofline = max(
        curve.size * side * side / gpu.rates.memory_bytes_per_second,
        2 * rows * side * side / gpu.rates.rate(curve.unit),
    )
    limited = part.products(tokens) / gpu.rates.rate(UNPACKED.get(part.unit, part.unit))
    limited = limited / SUSTAINED_ELSEWHERE  # of every card: a server's passes are short
    return max(limited, _bound(part, tokens, gpu) * float(measured) / roofline)


def decode_attention_seconds(
    stage: StageWork, context: float, sequences: float, gpu: ServingGpu
) -> float:
    """Attention of a decode step: it reads the caches, or computes longer."""
    kernel = DECODE_ATTENTION.get(gpu.capability, OTHER_ATTENTION)
    read = sequences * cache_bytes(stage, int(context)) / gpu.rates.memory_bytes_per_second
    products = sum(one.count * one.in_step(int(context)) for one in stage.mixings)
    computed = 2 * sequences * products / gpu.rates.rate(stage.mixed)
    return stage.layers * kernel.seconds + max(read, computed) / kernel.share


def prompt_attention_seconds(
    stage: StageWork, prompt: int, sequences: float, gpu: ServingGpu
) -> float:
    """Attention of prompts, at the FLOP/s of the curve for their length and heads."""
    total = 0.0
    scale = gpu.rates.rate(stage.mixed) / gpu.rates.rate("bf16")
    for one in stage.mixings:
        heads = max(1.0, one.prompt / (2 * HEAD_DIM))
        keys = prompt if one.prompt else LONG  # a recurrence works in chunks, whatever the prompt
        rate = gpu.machine.attention.at(HEAD_DIM, keys, sequences * heads)
        flops = 2 * one.count * one.in_prompt(prompt) * prompt * sequences
        total += flops / (rate * min(scale, 1.0))
    return total


def elementwise_seconds(stage: StageWork, tokens: float, gpu: ServingGpu) -> float:
    """Kernels that are no products: at least a launch each, else what they read and write."""
    moved = ELEMENTWISE * tokens * stage.hidden_bytes / gpu.rates.memory_bytes_per_second
    launched = SMALL_KERNELS * SMALL_KERNEL_SECONDS
    return stage.layers * max(launched, moved / ELEMENTWISE_SHARE)


def reduction_seconds(stage: StageWork, tokens: float, gpu: ServingGpu) -> float:
    """All-reduces of hidden states: in one kernel, or NCCL's where that is faster."""
    if stage.ranks == 1:
        return 0.0
    size = tokens * stage.gathered * stage.hidden_bytes
    each = float(collective_seconds(gpu.machine, "all_reduce", size, stage.ranks))
    if gpu.machine.within.bytes_per_second >= FAST_LINK and stage.ranks in ONE_KERNEL:
        small, large = ONE_KERNEL[stage.ranks]
        each = min(each, small + (large - small) * max(0.0, size - 8192) / (524288 - 8192))
    return stage.sums * each


def exchange_seconds(stage: StageWork, tokens: float, gpu: ServingGpu) -> float:
    """Tokens to their experts and back, where data-parallel replicas share experts.

    A rank sends its part of the replica's tokens to each of their experts: an all-to-all before the
    experts of a layer, and one after them.
    """
    spread = max((part.spread for part in stage.parts if part.chosen < 1), default=1)
    if spread <= stage.gathered or not stage.exchanged:
        return 0.0
    each = tokens / stage.ranks * stage.hidden_bytes * stage.routed / stage.exchanged
    ranks = stage.ranks * spread
    return 2 * stage.exchanged * float(collective_seconds(gpu.machine, "all_to_all", each, ranks))
