"""Adds up the seconds of matmuls, attention and other kernels of a block."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ...ledger.num import Num, larger, smaller
from ...run.run import Run
from ...training.engines import engine_row
from ..curves.attention import attention_seconds
from ..curves.machine import Machine
from ..curves.matmul import NARROW, grouped_matmul_seconds, matmul_seconds
from .estimates import SUSTAINED, SUSTAINED_ELSEWHERE, UNALIGNED
from .operators import EXPERTS, AttentionCall, Matmul
from .step_seconds import Seconds, summed
from .tapes import precision_of
from .traffic import MemoryKernel, elementwise_seconds

# How much longer than its bytes at full bandwidth a batch of products for scores takes: 1.3 to 1.5
# on the H200's curve, for 1,024 and 2,048 tokens and heads of 128.
SCORES_LONGER = 1.4
LEAST_ROWS = 16  # of a tile of tensor cores: fewer rows of an expert take as long
# Rows, columns and summed dimension of a matmul, of its input's and of its weight's gradient.
SIZES: dict[str, Callable[[Matmul], tuple[Num, Num, Num]]] = {
    "forward": lambda one: (one.m, one.n, one.k),
    "input": lambda one: (one.m, one.k, one.n),
    "weight": lambda one: (one.n, one.k, one.m),
}


def dtype_of(run: Run, engine: str) -> str:
    """The dtype of matmuls; torch multiplies fp32 without TF32 unless told otherwise."""
    precision = precision_of(run, engine)
    narrow = precision.autocast or run.autocast or precision.compute == 16
    return "bf16" if narrow else "fp32"


def sustained_share(machine: Machine) -> float:
    """The share of its peak that a card reaches for long."""
    shares = (share for name, share in SUSTAINED.items() if name in machine.card)
    return next(shares, SUSTAINED_ELSEWHERE)


class BlockClock:
    """Adds up the seconds of a block's matmuls, attention and other kernels."""

    def __init__(self, run: Run, engine: str, machine: Machine) -> None:
        self.run, self.engine, self.machine = run, engine, machine
        self.dtype = dtype_of(run, engine)
        self.seconds_per_product = 2.0 / (machine.peak[self.dtype] * sustained_share(machine))

    @property
    def wide_experts(self) -> bool:
        """Whether experts are multiplied in fp32: autocast does not cast the grouped product of
        transformers' experts (torch 2.11 autocast_mode.h has no _grouped_mm).
        """
        precision = precision_of(self.run, self.engine)
        return (
            precision.autocast and precision.weights == 32 and not engine_row(self.engine).megatron
        )

    @property
    def kernel(self) -> str:
        """The attention kernel: flash-attn 2 where a run asks for it; Megatron has faster ones."""
        asked = self.run.attention == "flash_attention_2" and not engine_row(self.engine).megatron
        return "flash" if asked else "sdpa"

    def product(self, one: Matmul, layout: str) -> Seconds:
        """Seconds of equal matmuls in one layout: by their shape, or at the rate that power allows.

        Experts run in one grouped kernel; a weight's gradient takes as long as its forward there.
        """
        m, n, k = SIZES[layout](one)
        m = larger(m, LEAST_ROWS)
        if one.part == EXPERTS and self.wide_experts:
            slow = 2.0 / (self.machine.peak["fp32"] * sustained_share(self.machine))
            seconds = larger(  # where a curve falls between its points, more rows are not faster
                *(
                    matmul_seconds(self.machine, rows, n, k, "fp32", one.count, layout)
                    for rows in (m, LEAST_ROWS)
                )
            )
            products: Any = m * n * k * one.count
            return larger(seconds, products * slow)
        if one.part == EXPERTS:
            rows, columns = one.m, one.k if layout == "input" else one.n
            inner = one.n if layout == "input" else one.k
            seconds = grouped_matmul_seconds(
                self.machine, rows, columns, inner, one.count, self.dtype
            )
        else:
            seconds = matmul_seconds(self.machine, m, n, k, self.dtype, one.count, layout)
        flops: Any = m * n * k * one.count
        if one.unaligned and self.dtype in NARROW:
            return larger(seconds, flops * (2.0 / (self.machine.peak["fp32"] * UNALIGNED)))
        if not one.weight:
            seconds = smaller(seconds, self.moved(one) * SCORES_LONGER)
        return larger(seconds, flops * self.seconds_per_product)

    def moved(self, one: Matmul) -> Seconds:
        """Seconds to read both factors of scores or values, which heads do not share, and to write
        the product.
        """
        elements: Any = one.m * (one.n + one.k + smaller(one.n, one.k)) * one.count
        width = 2.0 if self.dtype in NARROW else 4.0
        return elements * (width / self.machine.memory_bytes_per_second)

    def forward(self, matmuls: Iterable[Matmul]) -> Seconds:
        """Seconds of matmuls."""
        return summed(self.product(one, "forward") for one in matmuls)

    def inputs(self, matmuls: Iterable[Matmul]) -> Seconds:
        """Seconds of the matmuls that compute gradients of inputs: both factors' for scores."""
        # the second factor of scores is as tall as the first
        factors = (one for one in matmuls for _ in range(1 if one.weight else 2))
        return summed(self.product(one, "input") for one in factors)

    def weights(self, matmuls: Iterable[Matmul]) -> Seconds:
        """Seconds of the matmuls that compute weight gradients."""
        trained = (one for one in matmuls if one.weight and one.trained)
        return summed(self.product(one, "weight") for one in trained)

    def attention(self, calls: Iterable[AttentionCall], *, backward: bool) -> Seconds:
        """Seconds of attention kernels."""
        return summed(
            call.count
            * attention_seconds(
                self.machine,
                batch=call.batch,
                heads=call.heads,
                head_dim=call.head_dim,
                queries=call.queries,
                keys=call.keys,
                causal=True,
                backward=backward,
                kernel=self.kernel,
            )
            for call in calls
        )

    def others(self, kernels: Iterable[MemoryKernel]) -> Seconds:
        """Seconds of kernels that memory bounds."""
        return elementwise_seconds(self.machine, kernels)
