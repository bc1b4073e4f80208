"""DeepSpeed's three batch sizes: two of them give the third, and all three must agree."""

from __future__ import annotations

from typing import NamedTuple

from ..core.errors import InputError

TRAIN, MICRO, STEPS = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
)  # fmt: skip


class Batch(NamedTuple):
    """Sequences of one forward pass, forward passes of a step, ranks with data of their own."""

    micro: int
    steps: int
    ranks: int


def complete(train: int | None, micro: int | None, steps: int | None, ranks: int | None) -> Batch:
    """What is left out follows from the rest, as in runtime/config.py
    _set_batch_related_parameters; ranks that are not known follow from all three, else are 1.
    """
    if ranks is None:
        all_known = train is not None and micro is not None and steps is not None
        ranks = max(1, train // (micro * steps)) if all_known else 1  # type: ignore[operator]
    if train is None and micro is None:
        raise InputError([f"{TRAIN} and {MICRO} are both missing; add {MICRO}"])
    if train is not None and train < ranks:
        raise InputError([f"{TRAIN}={train} is less than one sequence for each of {ranks} ranks; "
                          f"set it to {_near(train, ranks * (micro or 1) * (steps or 1))}"]
                         )  # fmt: skip
    if micro is None:
        assert train is not None
        micro = max(1, train // ranks // (steps or 1))
    if steps is None:
        steps = 1 if train is None else max(1, train // micro // ranks)
    product = micro * steps * ranks
    if train is not None and train != product:
        raise InputError([_disagree(train, micro, steps, ranks)])
    return Batch(micro, steps, ranks)


def _near(value: int, unit: int) -> int:
    """The multiple of `unit` that is nearest, and not 0."""
    return max(1, round(value / unit)) * unit


def _disagree(train: int, micro: int, steps: int, ranks: int) -> str:
    """The identity that does not hold, and the nearest fix: a number of steps where one does it,
    else the nearest whole batch.
    """
    product = micro * steps * ranks
    fix = f"set {TRAIN} to {product}"
    if train % (micro * ranks) == 0:
        fix = f"set {STEPS} to {train // (micro * ranks)}, or {TRAIN} to {product}"
    return (f"{TRAIN}={train} is not {MICRO} {micro} x {STEPS} {steps} x {ranks} "
            f"{'rank' if ranks == 1 else 'ranks'}, which is {product}; {fix}")  # fmt: skip
