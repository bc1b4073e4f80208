"""Seconds of optimizer steps, measured.

H200, torch 2.11, bitsandbytes 0.50.2, DeepSpeed 0.19.8, 2026-11-18
(`catalog/curves/optimizers/`). Steps on the GPU are bound by memory: bytes for each parameter at
the full bandwidth of the card that take as long. They are those of 0.1 billion parameters, less
the 0.3 ms until the first kernel starts: there the tensors are aligned as those of models are, and
kernels take four elements at once. What bitsandbytes and loops take for each tensor is the host's.
"""

from __future__ import annotations

# (optimizer, implementation) -> bytes of a parameter in 32 bits, and in 16
BYTES: dict[tuple[str, str], tuple[float, float]] = {
    ("adamw", "foreach"): (99.0, 58.0),
    ("adamw", "fused"): (40.0, 25.0),
    ("adamw", "forloop"): (87.0, 45.0),
    ("adamw", "deepspeed"): (40.0, 40.0),
    ("sgd", "foreach"): (15.0, 10.0),
    ("sgd_momentum", "foreach"): (38.0, 23.0),
    ("adafactor", "foreach"): (75.0, 60.0),
    ("adamw_8bit", ""): (134.0, 134.0),
    ("paged_adamw_8bit", ""): (165.0, 165.0),
    ("lion_8bit", ""): (86.0, 86.0),
}
CLIP = (15.0, 9.0)
# Seconds of the host for one tensor, clipping included
TENSOR: dict[tuple[str, str], float] = {
    ("adamw", "foreach"): 2.6e-5,
    ("adamw", "fused"): 1.8e-5,
    ("adamw", "forloop"): 1.6e-4,
    ("adamw", "deepspeed"): 1.0e-5,
    ("sgd", "foreach"): 8.0e-6,
    ("sgd_momentum", "foreach"): 1.2e-5,
    ("adafactor", "foreach"): 2.2e-4,
    ("adamw_8bit", ""): 5.5e-5,
    ("paged_adamw_8bit", ""): 6.0e-5,
    ("lion_8bit", ""): 4.5e-5,
}
WAITS = ("adamw_8bit", "paged_adamw_8bit", "lion_8bit")  # the host waits for each tensor's kernel
