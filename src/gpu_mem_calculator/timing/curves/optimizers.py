"""Seconds of optimizer steps, measured, or derived from the measured ones.

H200, torch 2.11, bitsandbytes 0.50.2, DeepSpeed 0.19.8, 2026-11-18
(`catalog/curves/optimizers/`). Steps on the GPU are bound by memory: bytes for each parameter at
the full bandwidth of the card that take as long. They are those of 0.1 billion parameters, less
the 0.3 ms until the first kernel starts: there the tensors are aligned as those of models are, and
kernels take four elements at once. What bitsandbytes and loops take for each tensor is the host's.

Every optimizer has a curve for each of its implementations, or its row in `training/optimizers.py`
says which other one it is timed as, which an answer repeats.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from ...training.optimizers import OPTIMIZERS, Optimizer

Step = tuple[str, str]  # optimizer, and implementation; "" for those that have one
FUSED_ADAM_STEP = "deepspeed"  # the implementation that is DeepSpeed's own kernel


class StepCurve(Struct, frozen=True):
    """What a step takes: bytes of a parameter in 32 bits, and in 16; seconds of the host for one
    tensor, clipping included.
    """

    wide: float
    half: float
    tensor: float


ADAMW = StepCurve(99.0, 58.0, 2.6e-5)
MOMENTUM = StepCurve(38.0, 23.0, 1.2e-5)
# torch's foreach AdamW moves 80 bytes of a parameter operation by operation (optim/adam.py), and
# takes as long as 99. RMSprop and Adagrad move 52: the average or the sum of squares is updated
# (20), its root taken (8), eps added (8), the weight stepped (16) (optim/rmsprop.py, adagrad.py).
SQUARES = StepCurve(*(figure * (52 / 80) for figure in (ADAMW.wide, ADAMW.half, ADAMW.tensor)))
CURVES: Mapping[Step, StepCurve] = {
    ("adamw", "foreach"): ADAMW,
    ("adamw", "fused"): StepCurve(40.0, 25.0, 1.8e-5),
    ("adamw", "forloop"): StepCurve(87.0, 45.0, 1.6e-4),
    ("adamw", FUSED_ADAM_STEP): StepCurve(40.0, 40.0, 1.0e-5),
    ("sgd", "foreach"): StepCurve(15.0, 10.0, 8.0e-6),
    ("sgd_momentum", "foreach"): MOMENTUM,
    ("adafactor", "foreach"): StepCurve(75.0, 60.0, 2.2e-4),
    ("rmsprop", "foreach"): SQUARES,
    ("adagrad", "foreach"): SQUARES,
    # momentum, then Newton-Schulz iterations, which are matrix products of their own
    ("muon", "forloop"): StepCurve(MOMENTUM.wide, MOMENTUM.half, 1.6e-4),
}
CLIP = (15.0, 9.0)
NEWTON_SCHULZ = 5  # iterations of Muon (torch 2.13 optim/_muon.py ns_steps)
# bitsandbytes' 8-bit kernels take 38 bytes and 48 for each state: 86 were measured of Lion, 134 of
# AdamW, 165 of paged AdamW, so that paging adds 15.5 for each. Its 32-bit kernels read and write
# the weight and each state and read the gradient, at the share of the bandwidth that torch's fused
# AdamW reaches: 28 bytes take as long as 40. A tensor takes the host 45 us with one state, 55 with
# two, and 5 more if they are paged.
OF_8BIT, OF_8BIT_STATE, PAGED = 38.0, 48.0, 15.5
FUSED_SHARE = 28 / 40


def _of_bitsandbytes(row: Optimizer) -> StepCurve:
    """A kernel of bitsandbytes with some states, of 8 bits or of 32."""
    more, tensor = PAGED * row.states * row.paged, 3.5e-5 + 1.0e-5 * row.states + 5.0e-6 * row.paged
    if row.block:
        narrow = OF_8BIT + OF_8BIT_STATE * row.states + more
        return StepCurve(narrow, narrow, tensor)
    wide, half = ((3 * width + 8 * row.states) / FUSED_SHARE + more for width in (4, 2))
    return StepCurve(wide, half, tensor)


def timed_step(step: Step) -> Step:
    """The step whose curve is taken: its own, else the one that its row says."""
    name, kind = step
    row = OPTIMIZERS[name]
    if step in CURVES or row.of_bitsandbytes:
        return step
    if not row.timed_as:
        where = "add one to CURVES in timing/curves/optimizers.py, or timed_as to its row"
        raise LookupError(f"{name} {kind} has no curve: {where} in training/optimizers.py")
    other, _, as_kind = row.timed_as.partition(" ")
    return other, as_kind or kind


def step_curve(step: Step) -> StepCurve:
    """What a step takes that was measured, or derived from one that was."""
    name, _ = step
    row = OPTIMIZERS[name]
    return _of_bitsandbytes(row) if row.of_bitsandbytes else CURVES[step]
