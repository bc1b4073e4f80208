"""Seconds of optimizer steps, measured.

H200, torch 2.11, bitsandbytes 0.50.2, DeepSpeed 0.19.8, 2026-11-18, at 0.1, 1 and 4 billion
parameters (`catalog/curves/optimizers/`). Steps on the GPU are bound by memory: bytes for each
parameter at the full bandwidth of the card that take as long. What bitsandbytes and loops take for
each tensor is the host's.
"""

from __future__ import annotations

# (optimizer, implementation) -> bytes of a parameter in 32 bits, and in 16
BYTES: dict[tuple[str, str], tuple[float, float]] = {
    ("adamw", "foreach"): (115.0, 70.0),
    ("adamw", "fused"): (45.5, 29.5),
    ("adamw", "forloop"): (99.0, 57.0),
    ("adamw", "deepspeed"): (43.7, 43.7),
    ("sgd", "foreach"): (17.0, 12.0),
    ("sgd_momentum", "foreach"): (45.0, 28.0),
    ("adafactor", "foreach"): (140.0, 110.0),
    ("adamw_8bit", ""): (134.0, 134.0),
    ("paged_adamw_8bit", ""): (165.0, 165.0),
    ("lion_8bit", ""): (86.0, 86.0),
}
CLIP = (19.0, 12.0)
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
