"""What a program runs between two steps of training: an evaluation, a generation."""

from __future__ import annotations

from msgspec import Struct

from ..ledger.num import Num


class Evaluation(Struct, frozen=True, kw_only=True):
    """Forward passes without gradients after a step.

    - batch, seq: sequences of a batch on one rank, and their tokens
    - rows: sequences of a whole evaluation on one rank
    - kept: batches whose logits are on the GPU together; 0: logits are not kept
    - last: sequences of the last of them
    - tokens: predicted tokens are kept in the place of logits
    """

    batch: Num
    seq: Num
    rows: Num = 0
    kept: int = 0
    last: Num = 0
    tokens: bool = False


class Generates(Struct, frozen=True, kw_only=True):
    """A program's own call of `generate`: prompts, and tokens of each and of its answer."""

    batch: Num
    prompt: Num
    new_tokens: Num
    use_cache: bool = True
