"""Completions that a policy generates, on which it is then trained."""

from __future__ import annotations

from msgspec import Struct

from ..ledger.num import Num

TRANSFORMERS, ELSEWHERE = "transformers", "elsewhere"


class Rollout(Struct, frozen=True, kw_only=True):
    """One generation of a training run, whose sequences are the micro-batches that follow.

    - engine: what generates: TRANSFORMERS, the policy itself by `generate`; ELSEWHERE, a server on
      other cards
    - sequences: on one rank; prompt, new_tokens: tokens of each
    - static: the KV cache has its full length from the start
    - scores: the policy's log-probabilities are computed before its update
    - temperature, top_k, top_p: of sampling; 1, 0 and 1 leave the distribution as it is
    """

    engine: str = TRANSFORMERS
    sequences: Num
    prompt: Num
    new_tokens: Num
    static: bool = False
    scores: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
