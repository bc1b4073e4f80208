"""Seconds of matrix products."""

from __future__ import annotations

from ...ledger.num import choose, larger, round_up
from .grid import Size, Value, is_array
from .machine import Machine

TILE = 128  # rows of a tile of a grouped product: CUTLASS and Triton kernels use 64 to 256
# Bytes of an element of a weight.
BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "fp8_block": 1, "nvfp4": 0.5}


# FLOP/s of one multiprocessor where the rows of a matrix have an odd number of 16-bit elements, so
# that they begin at any 2 bytes, by layout: a vocabulary of 50,257 and 768 inputs, 512 to 8,192
# tokens, on an H200 with 132 of them (torch 2.11.0+cu130). Such kernels load element by element,
# which newer tensor cores do not make faster: other cards have the same rate for each
# multiprocessor. vTrain's A100s reach 85e12 on 108 of them (tests/ground_truth/timing).
ODD_RATES = {"forward": 0.71e12, "input": 1.04e12, "weight": 1.09e12}
MULTIPROCESSORS = 132  # where a card's are not known
NARROW = ("bf16", "fp16")


def matmul_seconds(
    machine: Machine,
    m: Size,
    n: Size,
    k: Size,
    dtype: str = "bf16",
    count: Size = 1,
    layout: str = "forward",
) -> Value:
    """Seconds of `count` products of an m x k with a k x n matrix, one after another.

    By layout, of a linear layer: `forward` has m tokens, n outputs and k inputs; `input`, the
    gradient of its input, has m tokens, n inputs and k outputs; `weight`, the gradient of its
    weight, has m outputs, n inputs and k tokens.
    """
    seconds = machine.matmul[dtype].at(m, n, k)
    odd = (n % 2 + (m if layout == "weight" else k) % 2) > 0
    if dtype in NARROW and (is_array(odd) or odd):
        parts = machine.multiprocessors or MULTIPROCESSORS
        slow = m * n * k * (2.0 / (parts * ODD_RATES[layout]))
        seconds = choose(odd, larger(seconds, slow), seconds)
    return seconds * count


def grouped_matmul_seconds(
    machine: Machine, m: Size, n: Size, k: Size, groups: Size, dtype: str = "bf16"
) -> Value:
    """Seconds of one kernel that multiplies `groups` matrices of m rows, each with its own weight.

    Derived: whole tiles of rows for each group, at the speed of one product with all these rows,
    but at least the time to read every weight. m may be a fraction (tokens per expert).
    """
    rows = round_up(m, TILE) * groups
    reading = groups * n * k * BYTES[dtype] / machine.memory_bytes_per_second
    return larger(machine.matmul[dtype].at(rows, n, k), reading)
