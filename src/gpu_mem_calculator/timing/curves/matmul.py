"""Seconds of matrix products."""

from __future__ import annotations

from .grid import Size, Value
from .machine import Machine


def matmul_seconds(
    machine: Machine, m: Size, n: Size, k: Size, dtype: str = "bf16", count: Size = 1
) -> Value:
    """Seconds of `count` products of an m x k with a k x n matrix, one after another.

    Forward of a linear layer has m tokens, n outputs and k inputs. The gradient of its input has m
    tokens, n inputs and k outputs. The gradient of its weight has m outputs, n inputs and k tokens.
    """
    return machine.matmul[dtype].at(m, n, k) * count
