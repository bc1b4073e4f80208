"""Seconds of the host for what it does in a step, of optimizers that run there, and of copies
between host and GPU, measured.

H200, 16 cores of a virtual Intel Xeon, torch 2.11, transformers 5.17, 2026-11-18: models so small
that the GPU waits for the host, of 4 and of 12 layers; the difference is that of eight layers
(`catalog/curves/host/`). Ten families in three precisions: one process differs from the next by
25 %. Copies and optimizers: on PCIe 5 x16, DeepSpeed 0.19.8 (`catalog/curves/transfers/`); pinned
copies reach their rate from 64 MiB on.
"""

from __future__ import annotations

from msgspec import Struct


class HostCosts(Struct, frozen=True, kw_only=True):
    """Seconds of eager torch.

    - layer: Python of one layer's forward besides its operations: module calls, views, arguments
    - operation, back_operation: one kernel of forward and of backward
    - frozen_operation: one kernel of backward where the weights take no gradient
    - ends: embedding, masks, positions, head and loss, forward and backward
    - step: clipping and the optimizer, besides its tensors
    """

    layer: float = 2.5e-4
    operation: float = 1.85e-5
    back_operation: float = 3.1e-5
    frozen_operation: float = 2.4e-5
    ends: float = 4.5e-3
    step: float = 1.0e-3


EAGER = HostCosts()
# A compiled layer launches its kernels from one call; of torch.compile's guards, once a layer.
COMPILED = HostCosts(layer=1.0e-4, operation=5.0e-6, back_operation=5.0e-6)
# Checkpointing of one layer, besides running forward again: states of random numbers, hooks on
# saved tensors.
CHECKPOINT = 1.8e-3
# Hooks of one FSDP unit: gather and free in forward; gather, reduce and free in backward.
FSDP_UNIT, FSDP_BACK_UNIT = 1.5e-3, 1.2e-3
FSDP_STEP = 6.5e-5  # of one sharded tensor in clipping and in the optimizer, a DTensor
# Hooks of one parameter's gradient by ZeRO stage, and of one parameter in its step.
ZERO_GRADIENT = {0: 3.5e-5, 1: 8.0e-5, 2: 1.0e-4, 3: 1.0e-4}
ZERO_STEP = {0: 1.9e-4, 1: 2.5e-5, 2: 4.0e-5, 3: 4.0e-5}
ZERO_ENDS = 4.0e-3  # of a micro-batch and step of DeepSpeed's engine
# ZeRO-3: hooks around the modules of one parameter, in each pass; and what a gather does for each
# parameter and rank. Estimated
# from twelve measured steps of ZeRO-3 on 4 to 64 ranks.
ZERO3_PARAMETER = 3.6e-4
ZERO3_RANK = 6.0e-6
# One layer of bitsandbytes in forward and in backward, besides its matmul.
QUANTIZED = {"nf4": (1.3e-4, 3.8e-4), "int8": (2.8e-4, 2.0e-4)}
# Bytes a second, pinned and pageable.
TO_GPU = {True: 5.4e10, False: 7.0e9}
TO_HOST = {True: 5.4e10, False: 1.3e10}
# Seconds of a parameter: DeepSpeed's CPU Adam with eight threads, and the cast of its gradient to
# 32 bits. With one thread Adam takes 1.5e-9.
CPU_ADAM, CPU_CAST = 3.6e-10, 1.8e-10
# torch's loop over tensors with sixteen threads: estimated from eight measured steps of FSDP with
# offload; with four threads 3.0e-9 was measured.
CPU_TORCH = 1.3e-9
