"""Shares of a card's memory bandwidth that kernels of torch reach, measured.

H200, torch 2.11, 2026-11-18, at nine sizes from 64 KiB to 4 GiB (`catalog/curves/elementwise/`).
From 64 MiB on a share does not change by more than 10 %; below, a kernel takes `KERNEL_SECONDS`
more. Other cards are assumed to reach the same shares.
"""

from __future__ import annotations

KERNEL_SECONDS = 1.9e-6  # of a kernel without work
PLAIN = 0.91  # addition, multiplication, copies, casts to 16 bits
WIDENED = 0.45  # casts from 16 to 32 bits
# A product with a tensor that is broadcast: what is left of RMS norm (0.48) and rotary
# embedding (0.44) after the kernels whose shares are known.
BROADCAST = 0.46
BROADCAST_BACKWARD = 0.65  # a product with it, one without, and a sum
ACTIVATION = 0.80  # silu 0.84, tanh gelu 0.77
DROPOUT = 0.64
NORM, NORM_BACKWARD = 0.59, 0.35  # torch's layer norm
SOFTMAX = {32: 0.54, 16: 0.27}  # by bits
LOG_SOFTMAX, LOG_SOFTMAX_BACKWARD = 0.47, 0.68  # of 32,000 to 128,256 logits in fp32
ROWS = 0.5  # a sum over rows: the gradient of a bias
ELSEWHERE = 0.8  # kernels that were not measured: Megatron's, Transformer Engine's
