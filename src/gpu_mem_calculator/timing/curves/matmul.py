"""Seconds of matrix products."""

from __future__ import annotations

from ...ledger.num import larger, round_up
from .grid import Size, Value
from .machine import Machine

TILE = 128  # rows of a tile of a grouped product: CUTLASS and Triton kernels use 64 to 256
# Bytes of an element of a weight.
BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "fp8_block": 1, "nvfp4": 0.5}


def matmul_seconds(
    machine: Machine, m: Size, n: Size, k: Size, dtype: str = "bf16", count: Size = 1
) -> Value:
    """Seconds of `count` products of an m x k with a k x n matrix, one after another.

    Forward of a linear layer has m tokens, n outputs and k inputs. The gradient of its input has m
    tokens, n inputs and k outputs. The gradient of its weight has m outputs, n inputs and k tokens.
    """
    return machine.matmul[dtype].at(m, n, k) * count


def grouped_matmul_seconds(
    machine: Machine, m: Size, n: Size, k: Size, groups: Size, dtype: str = "bf16"
) -> Value:
    """Seconds of one kernel that multiplies `groups` matrices of m rows, each with its own weight.

    Derived: whole tiles of rows for each group, at the speed of one product with all these rows,
    but at least the time to read every weight. m may be a fraction (tokens per expert).
    """
    rows = round_up(m, TILE) * groups
    width = BYTES.get(dtype, 2)
    reading = groups * n * k * width / machine.memory_bytes_per_second
    return larger(machine.matmul[dtype].at(rows, n, k), reading)
