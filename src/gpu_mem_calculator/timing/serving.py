"""A server's speed by roofline (Williams, Waterman and Patterson, 2009): an upper bound, and what
bounds it.

Computing, reading and sending may all overlap; what cannot is waiting for a message.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from .card import CardRates
from .work import PassWork, StageWork, prompt_work, step_work

COMPUTE, MEMORY, LINK = "compute", "memory bandwidth", "communication"
SEGMENTS = 16  # of an answer, whose context grows


class ServingReplica(Struct, frozen=True, kw_only=True):
    """A model on the cards of one replica: one rank of each pipeline stage.

    `overlapped`: several batches run through the stages at once (not so in llama.cpp).
    """

    card: CardRates
    stages: tuple[StageWork, ...]
    overlapped: bool = True

    @property
    def alone(self) -> ServingReplica:
        """The same with one sequence on all of its cards."""
        return replace(self, stages=tuple(stage.alone for stage in self.stages))


class PassTime(Struct, frozen=True):
    """How long it takes at least, and what bounds it."""

    seconds: float
    bound: str


def timed(work: PassWork, card: CardRates) -> PassTime:
    """The longest of computing, reading and sending, and the messages one waits for."""
    compute = sum(n / card.rate(unit) for unit, n in work.flops.items() if n)
    memory = work.read_bytes / card.memory_bytes_per_second
    sent = work.sent_bytes / card.link_bytes_per_second if work.sent_bytes else 0.0
    waited = work.messages * card.link_seconds
    longest = max(compute, memory, sent)
    if sent + waited >= max(compute, memory, 1e-30):
        return PassTime(longest + waited, LINK)
    return PassTime(longest + waited, COMPUTE if compute >= memory else MEMORY)


def prompt_works(serving: ServingReplica, prompt: int, sequences: float = 1) -> list[PassWork]:
    """Prompts in one pass, on each stage."""
    card = serving.card
    return [prompt_work(stage, prompt, sequences, adds_up=card.adds_up) for stage in serving.stages]


def step_works(serving: ServingReplica, context: int, sequences: float) -> list[PassWork]:
    """One token of each sequence, on each stage."""
    card = serving.card
    return [step_work(stage, context, sequences, adds_up=card.adds_up) for stage in serving.stages]


def first_token(serving: ServingReplica, prompt: int, chunk: int) -> PassTime:
    """The time of one prompt: stage after stage, unless it is cut into chunks that follow each
    other through the stages.
    """
    passes = [timed(work, serving.card) for work in prompt_works(serving, prompt)]
    slowest = max(passes, key=lambda one: one.seconds)
    chunks = -(-prompt // chunk)
    total = sum(one.seconds for one in passes)
    return PassTime((total + (chunks - 1) * slowest.seconds) / chunks, slowest.bound)


def prompt_rate(serving: ServingReplica, prompt: int) -> tuple[float, str]:
    """Prompt tokens a second with prompts in every stage, and the bound: the slowest stage's."""
    slowest = max((timed(work, serving.card) for work in prompt_works(serving, prompt)),
                  key=lambda one: one.seconds)  # fmt: skip
    return prompt / slowest.seconds, slowest.bound


def step_rates(serving: ServingReplica, context: int, sequences: int) -> tuple[float, float, str]:
    """Tokens a second of all sequences and of each, and the bound.

    With a pipeline the sequences are cut into as many batches as there are stages: each token
    passes all of them, and the slowest stage says how many do in a second.
    """
    batches = min(len(serving.stages), sequences) if serving.overlapped else 1
    together = sequences / batches
    passes = [timed(work, serving.card) for work in step_works(serving, context, together)]
    slowest = max(passes, key=lambda one: one.seconds)
    around = max(sum(one.seconds for one in passes), batches * slowest.seconds)
    return sequences / around, 1 / around, slowest.bound


def prompts(serving: ServingReplica, prompt: int, sequences: float) -> PassTime:
    """The time of so many prompts together, with prompts in every stage: the slowest stage's."""
    passes = [timed(work, serving.card) for work in prompt_works(serving, prompt, sequences)]
    return max(passes, key=lambda one: one.seconds)


def requests(
    serving: ServingReplica, prompt: int, new: int, sequences: float, *, prompted: bool = False
) -> PassTime:
    """The time that so many requests take together: prompts, and answers of `new` tokens, the
    first of which comes with the prompt; `prompted`: without the prompts.

    One alone waits for its prompt and then for each step. Of several, the prompts of some are
    computed while others read their caches.
    """
    batches = min(len(serving.stages), sequences) if serving.overlapped else 1
    together = sequences / batches
    passes = []
    for stage, first in enumerate(prompt_works(serving, max(1, prompt), together)):
        steps = _answer(serving, stage, prompt, new if prompted else new - 1, together)
        if prompted:
            passes.append(timed(steps, serving.card))
        elif sequences == 1:
            both = timed(first, serving.card), timed(steps, serving.card)
            longer = max(both, key=lambda one: one.seconds)
            passes.append(PassTime(both[0].seconds + both[1].seconds, longer.bound))
        else:
            passes.append(timed(first.plus(steps), serving.card))
    slowest = max(passes, key=lambda one: one.seconds)
    total = sum(one.seconds for one in passes)
    return PassTime(max(total, batches * slowest.seconds), slowest.bound)


def _answer(
    serving: ServingReplica, stage: int, prompt: int, steps: int, sequences: float
) -> PassWork:
    """So many steps on one stage.

    Between the ends of a segment what is read grows in a line, or less where a window fills up.
    """
    ends = [prompt + 1 + steps * number // SEGMENTS for number in range(SEGMENTS + 1)]
    works = [step_work(serving.stages[stage], end, sequences, adds_up=serving.card.adds_up)
             for end in ends]  # fmt: skip
    total = works[0].plus(works[-1]).times(0.5)
    for work in works[1:-1]:
        total = total.plus(work)
    return total.times(steps / SEGMENTS)
