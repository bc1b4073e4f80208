"""Why a plan for serving stands where it does: sentences."""

from __future__ import annotations

from collections.abc import Iterator

from ....runfile.resolve.serving_split import TENSOR
from ....serving import server
from ...serving.changes import gpus_title
from ..answers.serving_question import ServingQuestion
from .points import ServingPoint, fast_enough, point
from .space import CACHE

SMALL = 0.02  # differences below are not worth a sentence


def reasons(
    question: ServingQuestion, one: ServingPoint, ranked: list[ServingPoint], servers: int
) -> Iterator[str]:
    """What the time goes to, what limits the users, and what the next plan lacks."""
    if servers > 1:
        yield f"{servers} servers with this run file, on {gpus_title(one.served.setup.gpus)} each"
    yield longest_part(one)
    limit = _limit(question, one)
    if limit:
        yield limit
    if ranked and one is ranked[0]:
        yield from _against_others(one, ranked[1:])
    if CACHE in one.served.setup.keys:
        name = one.served.setup.keys[CACHE]
        yield f"the KV cache is in {name}, which makes attention less exact"


def longest_part(one: ServingPoint) -> str:
    """What most of a user's seconds per token go to."""
    part, seconds = max(one.output.parts.items(), key=lambda pair: pair[1])
    share = 100 * seconds / one.output.estimate
    return f"of {1000 * one.output.estimate:.1f} ms per output token, {share:.0f} % is {part}"


def _limit(question: ServingQuestion, one: ServingPoint) -> str:
    """What keeps more users from this plan."""
    if question.users is not None:
        return ""
    most = one.served.most_users(one.lengths)
    if one.batch == most:
        return f"memory limits each replica to {most:,} users of {one.lengths.context:,} tokens"
    more = point(one.served, one.lengths, one.batch + 1, one.servers)
    if not fast_enough(question, more):
        return f"with more than {one.batch:,} users on a replica it would be slower than asked"
    return ""


def _against_others(one: ServingPoint, others: list[ServingPoint]) -> Iterator[str]:
    """The first other plan that differs in engine, and the first that differs in TP."""
    mine = one.served.setup
    other = next((p for p in others if p.served.setup.engine != mine.engine), None)
    if other is not None:
        gain = one.tokens_per_second / other.tokens_per_second - 1
        title = server(other.served.setup.engine).title
        if gain > SMALL:
            yield f"{100 * gain:.0f} % more tokens/s than the best plan with {title}"
    tp = mine.keys.get(TENSOR, 1)
    same = [p for p in others if p.served.setup.engine == mine.engine]
    narrow = next((p for p in same if p.served.setup.keys.get(TENSOR, 1) != tp), None)
    if narrow is not None:
        gain = one.tokens_per_second / narrow.tokens_per_second - 1
        size = narrow.served.setup.keys.get(TENSOR, 1)
        if gain > SMALL:
            yield f"{100 * gain:.0f} % more tokens/s than with tensor parallel size {size}"
