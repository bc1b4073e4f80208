"""The evaluation between two steps of training, as transformers' Trainer runs it."""

from __future__ import annotations

from msgspec import Struct

from ..ledger.num import Num


class Evaluation(Struct, frozen=True, kw_only=True):
    """Forward passes without gradients after a step.

    - batch, seq: sequences of a batch on one rank, and their tokens
    - kept: batches whose logits are on the GPU together; 0: logits are not kept
    """

    batch: Num
    seq: Num
    kept: int = 0
