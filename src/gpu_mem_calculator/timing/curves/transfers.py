"""Copies between host and GPU, and optimizers on the host, measured.

H200 on PCIe 5 x16, 16 cores of a virtual Intel Xeon, torch 2.11, DeepSpeed 0.19.8, 2026-11-18
(`catalog/curves/transfers/`). Pinned copies reach their rate from 64 MiB on.
"""

from __future__ import annotations

# Bytes a second, pinned and pageable.
TO_GPU = {True: 5.4e10, False: 7.0e9}
TO_HOST = {True: 5.4e10, False: 1.3e10}
# Seconds of a parameter: DeepSpeed's CPU Adam with eight threads, and the cast of its gradient to
# 32 bits. With one thread Adam takes 1.5e-9.
CPU_ADAM, CPU_CAST = 3.6e-10, 1.8e-10
# torch's loop over tensors with sixteen threads: estimated from eight measured steps of FSDP with
# offload; with four threads 3.0e-9 was measured.
CPU_TORCH = 1.3e-9
