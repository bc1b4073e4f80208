"""An upper bound of a server's speed by roofline (Williams, Waterman and Patterson, 2009), and what
limits it, from the card's rates by its data sheet.

Computing, reading memory and sending may all overlap; the latency of messages is added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from .work import PassWork, StageWork, prompt_work, step_work

COMPUTE, MEMORY, LINK = "compute", "memory bandwidth", "communication"
SEGMENTS = 16  # pieces of an answer, for each of which the work of a step is interpolated


# Units that no data sheet names: llama.cpp's products of quantized weights run on the faster of the
# 8-bit integer and the 16-bit unit; its 16-bit products may be summed in 16 bits.
QUANTIZED, SHORT_SUM = "int8 or fp16", "fp16, summed in 16 bits"


class CardRates(Struct, frozen=True, kw_only=True):
    """What a card can do in a second, and how long a message takes.

    - `flops`: operations a second, by dtype
    - `link_seconds`: latency of one message between cards
    - `adds_up`: the switch between the cards can sum what they send (NVLink SHARP)
    """

    flops: Mapping[str, float]
    memory_bytes_per_second: float
    link_bytes_per_second: float
    link_seconds: float
    adds_up: bool = False

    def rate(self, unit: str) -> float:
        """Operations a second of a unit; where the card has none, products run in 16 bits."""
        if unit == QUANTIZED:
            return max(self.flops.get("int8", 0.0), self.rate(SHORT_SUM))
        if unit == SHORT_SUM:
            # GeForce cards are half as fast where the sums are in 32 bits, and their 16-bit sums
            # run at half the rate of 8-bit integers, as all 16-bit products do elsewhere
            most = self.flops.get("int8", 0.0) / 2 if "fp16" in self.flops else 0.0
            return max(self.rate("fp16"), most)
        for name in (unit, "bf16", "fp16", "fp32"):
            if name in self.flops:
                return self.flops[name]
        return 0.0


class ServingReplica(Struct, frozen=True, kw_only=True):
    """A model on the cards of one replica: one rank of each pipeline stage.

    `overlapped`: several batches are in the pipeline at once (not in llama.cpp).
    """

    card: CardRates
    stages: tuple[StageWork, ...]
    overlapped: bool = True

    @property
    def alone(self) -> ServingReplica:
        """The same while it serves one sequence only."""
        alone = {id(stage): stage.alone for stage in self.stages}
        return replace(self, stages=tuple(alone[id(stage)] for stage in self.stages))


class PassTime(Struct, frozen=True):
    """The least seconds of a pass, and what limits it: COMPUTE, MEMORY or LINK."""

    seconds: float
    bound: str


def pass_time(work: PassWork, card: CardRates) -> PassTime:
    """The longest of computing, reading and sending, plus the latency of the messages."""
    compute = sum(n / card.rate(unit) for unit, n in work.flops.items() if n)
    memory = work.read_bytes / card.memory_bytes_per_second
    sent = work.sent_bytes / card.link_bytes_per_second if work.sent_bytes else 0.0
    waited = work.messages * card.link_seconds
    longest = max(compute, memory, sent)
    if sent + waited >= max(compute, memory, 1e-30):
        return PassTime(longest + waited, LINK)
    return PassTime(longest + waited, COMPUTE if compute >= memory else MEMORY)


def _slowest(passes: Sequence[PassTime]) -> PassTime:
    return max(passes, key=lambda one: one.seconds)


def prompt_works(serving: ServingReplica, prompt: int, sequences: float = 1) -> list[PassWork]:
    """The prefill of `sequences` prompts in one pass, on each stage."""
    card = serving.card
    return [prompt_work(stage, prompt, sequences, adds_up=card.adds_up) for stage in serving.stages]


def step_works(serving: ServingReplica, context: int, sequences: float) -> list[PassWork]:
    """A decode step of `sequences` sequences, on each stage."""
    card = serving.card
    return [step_work(stage, context, sequences, adds_up=card.adds_up) for stage in serving.stages]


def first_token_time(serving: ServingReplica, prompt: int, chunk: int) -> PassTime:
    """The time of one prompt: the sum over the stages; chunks of `chunk` tokens are pipelined."""
    passes = [pass_time(work, serving.card) for work in prompt_works(serving, prompt)]
    slowest = _slowest(passes)
    chunks = -(-prompt // chunk)
    total = sum(one.seconds for one in passes)
    return PassTime((total + (chunks - 1) * slowest.seconds) / chunks, slowest.bound)


def prompt_rate(serving: ServingReplica, prompt: int) -> tuple[float, str]:
    """Prompt tokens a second with every stage busy, and what limits the slowest stage."""
    slowest = prompts(serving, prompt, 1)
    return prompt / slowest.seconds, slowest.bound


def step_rates(serving: ServingReplica, context: int, sequences: int) -> tuple[float, float, str]:
    """Tokens a second of all sequences batch and of each, and what limits them.

    A pipeline divides the sequences into as many batches as it has stages: each token passes all
    stages, and the slowest stage limits the rate.
    """
    batches = min(len(serving.stages), sequences) if serving.overlapped else 1
    batch = sequences / batches
    passes = [pass_time(work, serving.card) for work in step_works(serving, context, batch)]
    slowest = _slowest(passes)
    round_trip = max(sum(one.seconds for one in passes), batches * slowest.seconds)
    return sequences / round_trip, 1 / round_trip, slowest.bound


def prompts(serving: ServingReplica, prompt: int, sequences: float) -> PassTime:
    """The time of `sequences` prompts in one pass with every stage busy: the slowest stage's."""
    works = prompt_works(serving, prompt, sequences)
    return _slowest([pass_time(work, serving.card) for work in works])


def requests(
    serving: ServingReplica, prompt: int, new: int, sequences: float, *, prompted: bool = False
) -> PassTime:
    """The time of `sequences` requests together: prompts, and answers of `new` tokens each.

    The first token of an answer is part of the prompt's pass. `prompted`: the prompts are not
    counted. A single request waits for its prompt, then for each step; of several, the prompts of
    some are computed while others read their caches.
    """
    batches = min(len(serving.stages), sequences) if serving.overlapped else 1
    batch = sequences / batches
    passes = []
    for stage, first in enumerate(prompt_works(serving, max(1, prompt), batch)):
        steps = _answer(serving, stage, prompt, new if prompted else new - 1, batch)
        if prompted:
            passes.append(pass_time(steps, serving.card))
        elif sequences == 1:
            both = pass_time(first, serving.card), pass_time(steps, serving.card)
            passes.append(PassTime(both[0].seconds + both[1].seconds, _slowest(both).bound))
        else:
            passes.append(pass_time(first.plus(steps), serving.card))
    slowest = _slowest(passes)
    total = sum(one.seconds for one in passes)
    return PassTime(max(total, batches * slowest.seconds), slowest.bound)


def _answer(
    serving: ServingReplica, stage: int, prompt: int, steps: int, sequences: float
) -> PassWork:
    """The work of `steps` decode steps on one stage, by the trapezoidal rule over SEGMENTS.

    Between the ends of a segment the bytes that are read grow linearly, or less once a window is
    full.
    """
    ends = [prompt + 1 + steps * number // SEGMENTS for number in range(SEGMENTS + 1)]
    works = [
        step_work(serving.stages[stage], end, sequences, adds_up=serving.card.adds_up)
        for end in ends
    ]
    total = works[0].plus(works[-1]).times(0.5)
    for work in works[1:-1]:
        total = total.plus(work)
    return total.times(steps / SEGMENTS)
