"""Completions that a policy generates, on which it is then trained."""

from __future__ import annotations

from msgspec import Struct

from ..ledger.num import Num

TRANSFORMERS, VLLM, ELSEWHERE = "transformers", "vllm", "elsewhere"


class EngineItem(Struct, frozen=True, kw_only=True):
    """Memory of an engine on the same card: the figure that it is part of (run/served.py), its name
    and its bytes.
    """

    figure: str
    name: str
    bytes: int


class Rollout(Struct, frozen=True, kw_only=True):
    """One generation of a training run, whose sequences are the micro-batches that follow.

    - engine: what generates: TRANSFORMERS, the policy itself by `generate`; VLLM, its engine on
      the same card; ELSEWHERE, a server on other cards
    - sequences: on one rank; prompt, new_tokens: tokens of each
    - static: the KV cache has its full length from the start
    - scores: the policy's log-probabilities are computed before its update
    - items: memory of the engine on the same card; sleep_level: from 1 on, its weights and cache
      are not there while the policy is trained; 1: the weights are on the host, in `asleep_bytes`
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
    items: tuple[EngineItem, ...] = ()
    sleep_level: int = 0
    asleep_bytes: int = 0
