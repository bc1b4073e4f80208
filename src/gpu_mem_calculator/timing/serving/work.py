"""Operations, bytes read and bytes sent of one pass on one rank of a pipeline stage."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from ...training.generation.kv_cache import LATENT, LayerState
from .mixing import MixerWork
from .parts import ALWAYS, ENCODING, LAST, WeightUse, products, read_bytes

MULTIPLY_ADD = 2


class PassWork(Struct, frozen=True, kw_only=True):
    """Operations by unit of the card, bytes read, bytes sent, and messages that are waited for."""

    flops: Mapping[str, float]
    read_bytes: float
    sent_bytes: float = 0.0
    messages: float = 0.0

    def times(self, passes: float) -> PassWork:
        """The work of `passes` such passes."""
        return PassWork(
            flops={unit: passes * n for unit, n in self.flops.items()},
            read_bytes=passes * self.read_bytes,
            sent_bytes=passes * self.sent_bytes,
            messages=passes * self.messages,
        )

    def plus(self, other: PassWork) -> PassWork:
        """The sum of both."""
        return PassWork(
            flops=sum_flops(self.flops, other.flops),
            read_bytes=self.read_bytes + other.read_bytes,
            sent_bytes=self.sent_bytes + other.sent_bytes,
            messages=self.messages + other.messages,
        )


class StageWork(Struct, frozen=True, kw_only=True):
    """One rank of a pipeline stage.

    - `parts`, `mixings`, `caches`: its weights, mixers and caches
    - `mixed`: the unit that scores and their products with values run on
    - `hidden_bytes`: one token's hidden state
    - `sums`: all-reduces of hidden states over the stage's `ranks`
    - `gathered`: data-parallel ranks whose tokens are in each all-reduce
    - `chosen`: the most tokens that sparse attention reads; 0: all
    - `routed`: experts of one token over all layers; `exchanged`: layers that have experts
    """

    parts: tuple[WeightUse, ...]
    mixings: tuple[MixerWork, ...]
    caches: tuple[LayerState, ...]
    mixed: str
    hidden_bytes: float
    sums: int = 0
    ranks: int = 1
    gathered: int = 1
    chosen: int = 0
    routed: int = 0
    exchanged: int = 0

    @property
    def alone(self) -> StageWork:
        """The same while the other data-parallel ranks are idle."""
        return replace(self, gathered=1, parts=tuple(replace(p, spread=1) for p in self.parts))

    @property
    def layers(self) -> int:
        """Layers of the stage, by their mixers."""
        return sum(one.count for one in self.mixings)

    @property
    def encodes(self) -> bool:
        """Whether an encoder reads the prompt, and the decoder only the answer."""
        return any(part.used == ENCODING for part in self.parts)


def sum_flops(*all_flops: Mapping[str, float]) -> dict[str, float]:
    """Operations by unit, summed."""
    total: dict[str, float] = {}
    for flops in all_flops:
        for unit, number in flops.items():
            total[unit] = total.get(unit, 0.0) + number
    return total


def prompt_work(
    stage: StageWork, prompt: int, sequences: float, *, adds_up: bool = False
) -> PassWork:
    """The prefill of `sequences` prompts in one pass; the head computes the last token of each."""
    tokens = prompt * sequences
    decoded = sequences if stage.encodes else tokens
    mixed = sum(
        one.count * one.in_prompt(prompt) * (tokens if one.used == "encoder" else decoded)
        for one in stage.mixings
        if one.used != "cross"
    )
    uses = {ENCODING: tokens, ALWAYS: decoded, LAST: sequences}
    return _work(stage, uses, mixed, tokens, adds_up=adds_up)


def step_work(
    stage: StageWork, context: int, sequences: float, *, adds_up: bool = False
) -> PassWork:
    """A decode step of `sequences` tokens: it reads the weights once, every sequence's cache, and
    reads and writes their states.
    """
    mixed = sum(one.count * one.in_step(context) for one in stage.mixings if one.used == "decoder")
    uses, cached = {ALWAYS: sequences, LAST: sequences}, sequences * cache_bytes(stage, context)
    return _work(stage, uses, sequences * mixed, sequences, adds_up=adds_up, cached=cached)


def _work(
    stage: StageWork,
    uses: Mapping[str, float],
    mixed: float,
    tokens: float,
    *,
    adds_up: bool,
    cached: float = 0.0,
) -> PassWork:
    """A pass of `tokens` tokens: how many use which weights, multiplications of mixers, and bytes
    of caches that are read. A message is waited for in each all-reduce at least.
    """
    mixing = {stage.mixed: MULTIPLY_ADD * mixed}
    return PassWork(
        flops=sum_flops(*(products(stage.parts, *use) for use in uses.items()), mixing),
        read_bytes=sum(read_bytes(stage.parts, *use) for use in uses.items()) + cached,
        sent_bytes=sent_bytes(stage, tokens, adds_up=adds_up),
        messages=float(stage.sums) if stage.ranks > 1 else 0.0,
    )


def cache_bytes(stage: StageWork, context: int) -> float:
    """Bytes of one sequence's cache that a step reads, and of states that it reads and writes."""
    total = 0.0
    for one in stage.caches:
        tokens = one.tokens(context)
        if one.kind == LATENT and stage.chosen:
            tokens = min(tokens, stage.chosen)
        total += len(one.places) * (one.token_bytes * tokens + 2 * one.state_bytes)
    return total


def sent_bytes(stage: StageWork, tokens: float, *, adds_up: bool = False) -> float:
    """The least bytes that a rank sends: 2 (t - 1) / t of each tensor (Patarasuk and Yuan, 2009);
    each tensor once where the switch computes the sum (`adds_up`).
    """
    if stage.ranks == 1:
        return 0.0
    copies = 2 * (stage.ranks - 1) / stage.ranks
    if adds_up:
        copies = min(copies, 1.0)
    return stage.sums * copies * tokens * stage.gathered * stage.hidden_bytes
