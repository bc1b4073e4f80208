"""Seconds of optimizer steps, measured, or derived from the measured ones.

H200, torch 2.11, bitsandbytes 0.50.2, DeepSpeed 0.19.8, 2026-11-18
(`catalog/curves/optimizers/`). Steps on the GPU are bound by memory: bytes for each parameter at
the full bandwidth of the card that take as long. They are those of 0.1 billion parameters, less
the 0.3 ms until the first kernel starts: there the tensors are aligned as those of models are, and
kernels take four elements at once. What bitsandbytes and loops take for each tensor is the host's.

Every optimizer has a row for each of its implementations, or is timed as another one (`TIMED_AS`),
which an answer says.
"""

from __future__ import annotations

Row = tuple[str, str]  # optimizer, and implementation; "" for those that have one

# row -> bytes of a parameter in 32 bits, and in 16
MEASURED: dict[Row, tuple[float, float]] = {
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
# torch's foreach AdamW moves 80 bytes of a parameter operation by operation (optim/adam.py), and
# takes as long as 99. RMSprop and Adagrad move 52: the average or the sum of squares is updated
# (20), its root taken (8), eps added (8), the weight stepped (16) (optim/rmsprop.py, adagrad.py).
FOREACH = 52 / 80
# bitsandbytes' 8-bit kernels take 38 bytes and 48 for each state: 86 with one, 134 with two. Paging
# adds 15.5 for each. Its 32-bit kernels read and write the weight and each state and read the
# gradient, at the share of the bandwidth that torch's fused AdamW reaches: 28 bytes take as long
# as 40.
OF_8BIT, OF_8BIT_STATE, PAGED = 38.0, 48.0, 15.5
FUSED_SHARE = 28 / 40


def _of_bitsandbytes(states: int, *, narrow: bool, paged: bool) -> tuple[float, float]:
    """A kernel of bitsandbytes with some states, of 8 bits (`narrow`) or of 32."""
    more = PAGED * states * paged
    if narrow:
        return (OF_8BIT + OF_8BIT_STATE * states + more,) * 2
    wide, half = (3 * width + 8 * states for width in (4, 2))
    return wide / FUSED_SHARE + more, half / FUSED_SHARE + more


def _scaled(row: Row, by: float) -> tuple[float, float]:
    wide, half = MEASURED[row]
    return wide * by, half * by


STATES = {"lion": 1, "rmsprop_bnb": 1, "adamw": 2, "ademamix": 3}  # of bitsandbytes' kernels
BITSANDBYTES: dict[str, tuple[int, bool, bool]] = {
    f"{page}{name}{width}": (states, bool(width), bool(page))
    for name, states in STATES.items()
    for page in ("", "paged_")
    for width in ("", "_8bit")
    if f"{page}{name}{width}" not in ("adamw", "paged_rmsprop_bnb", "paged_rmsprop_bnb_8bit")
}
BYTES: dict[Row, tuple[float, float]] = {
    ("rmsprop", "foreach"): _scaled(("adamw", "foreach"), FOREACH),
    ("adagrad", "foreach"): _scaled(("adamw", "foreach"), FOREACH),
    # momentum, then Newton-Schulz iterations, which are matrix products of their own
    ("muon", "forloop"): MEASURED["sgd_momentum", "foreach"],
    **{
        (name, ""): _of_bitsandbytes(states, narrow=narrow, paged=paged)
        for name, (states, narrow, paged) in BITSANDBYTES.items()
    },
    **MEASURED,
}
CLIP = (15.0, 9.0)
# Seconds of the host for one tensor, clipping included
TENSOR: dict[Row, float] = {
    ("adamw", "foreach"): 2.6e-5,
    ("adamw", "fused"): 1.8e-5,
    ("adamw", "forloop"): 1.6e-4,
    ("adamw", "deepspeed"): 1.0e-5,
    ("sgd", "foreach"): 8.0e-6,
    ("sgd_momentum", "foreach"): 1.2e-5,
    ("adafactor", "foreach"): 2.2e-4,
    ("rmsprop", "foreach"): 2.6e-5 * FOREACH,
    ("adagrad", "foreach"): 2.6e-5 * FOREACH,
    ("muon", "forloop"): 1.6e-4,
    # bitsandbytes: 45 us with one state, 55 with two; paging 5
    **{
        (name, ""): 3.5e-5 + 1.0e-5 * states + 5.0e-6 * paged
        for name, (states, _, paged) in BITSANDBYTES.items()
    },
}
WAITS = tuple(BITSANDBYTES)  # the host waits for each tensor's kernel
# What was not measured, and takes the time of another row; an answer says so.
TIMED_AS: dict[Row, Row] = {
    **{("adam", kind): ("adamw", kind) for kind in ("foreach", "fused", "forloop", "deepspeed")},
    **{
        (name, kind): (name, "foreach")
        for name in ("sgd", "sgd_momentum")
        for kind in ("fused", "forloop")
    },
    ("adafactor", "forloop"): ("adafactor", "foreach"),
    ("adafactor_transformers", ""): ("adafactor", "foreach"),
}
NEWTON_SCHULZ = 5  # iterations of Muon (torch 2.13 optim/_muon.py ns_steps)
