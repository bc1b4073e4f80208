"""DeepSpeed's three batch sizes: two of them determine the third, and all three must agree."""

from __future__ import annotations

from typing import NamedTuple

from ...runfile.text.errors import InputError

TRAIN, MICRO = "train_batch_size", "train_micro_batch_size_per_gpu"
STEPS = "gradient_accumulation_steps"


class BatchSizes(NamedTuple):
    """The batch sizes of a run.

    - micro: sequences of one forward pass on one rank
    - steps: micro-batches of an optimizer step
    - ranks: data-parallel ranks
    """

    micro: int
    steps: int
    ranks: int


def complete_batch(
    train: int | None, micro: int | None, steps: int | None, ranks: int | None
) -> BatchSizes:
    """Complete the batch sizes, as runtime/config.py _set_batch_related_parameters does.

    Unknown ranks follow from all three sizes where they are given, else there is 1 rank.
    """
    if train is None:
        if micro is None:
            raise InputError(f"{TRAIN} and {MICRO} are both missing; add {MICRO}")
        return BatchSizes(micro, steps or 1, ranks or 1)
    if micro is not None and steps is not None:
        ranks = ranks or max(1, train // (micro * steps))
        if train != micro * steps * ranks:
            raise InputError(_disagree(train, micro, steps, ranks))
        return BatchSizes(micro, steps, ranks)
    ranks = ranks or 1
    unit = ranks * (micro or 1) * (steps or 1)
    if train % unit:
        raise InputError(_no_multiple(train, {MICRO: micro, STEPS: steps}, ranks, unit))
    micro = micro or train // unit
    return BatchSizes(micro, steps or train // (micro * ranks), ranks)


def _ranks(count: int) -> str:
    return f"{count} {'rank' if count == 1 else 'ranks'}"


def _no_multiple(train: int, sizes: dict[str, int | None], ranks: int, unit: int) -> str:
    """The sentence for a batch that cannot be divided, with the nearest that can."""
    factors = [f"{key} {value}" for key, value in sizes.items() if value is not None]
    whole = f", which is {unit}" if factors else ""
    return (
        f"{TRAIN}={train} is not a multiple of {' x '.join([*factors, _ranks(ranks)])}{whole}; "
        f"set it to {max(1, round(train / unit)) * unit}"
    )


def _disagree(train: int, micro: int, steps: int, ranks: int) -> str:
    """The sentence for sizes that disagree; the fix is other steps where that is possible."""
    product = micro * steps * ranks
    fix = f"set {TRAIN} to {product}"
    if train % (micro * ranks) == 0:
        fix = f"set {STEPS} to {train // (micro * ranks)}, or {TRAIN} to {product}"
    return (
        f"{TRAIN}={train} is not {MICRO} {micro} x {STEPS} {steps} x {_ranks(ranks)}, which is "
        f"{product}; {fix}"
    )
