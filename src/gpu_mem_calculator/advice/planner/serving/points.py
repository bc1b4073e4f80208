"""Servers with a number of users: which meet the targets, and how they are ranked."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ....timing.serving.seconds import ServingSeconds
from ..answers.question import FEWEST_GPUS, LARGEST_BATCH, LONGEST_CONTEXT
from ..answers.serving_question import ServingQuestion
from .set_up import Lengths, ServedSetup
from .space import doubled

MOST_GPUS = 1024  # where the question does not give them


class ServingPoint(Struct, frozen=True, kw_only=True):
    """`servers` equal servers with `batch` users on each copy of the model."""

    served: ServedSetup
    lengths: Lengths
    batch: int
    servers: int
    output: ServingSeconds
    first: ServingSeconds

    @property
    def gpus(self) -> int:
        """GPUs of all servers."""
        return self.servers * self.served.setup.gpus

    @property
    def replicas(self) -> int:
        """Copies of the model."""
        return self.servers * self.served.copies

    @property
    def users(self) -> int:
        """Sequences at once."""
        return self.replicas * self.batch

    @property
    def tokens_per_second(self) -> float:
        """Output tokens of all users, each of whom asks again at once.

        The seconds per output token of several contain their prompts, those of one do not.
        """
        prompt = self.first.estimate / self.lengths.new if self.batch == 1 else 0.0
        return self.users / (self.output.estimate + prompt)


def point(served: ServedSetup, lengths: Lengths, batch: int, servers: int) -> ServingPoint:
    """The point of a server with `batch` users on each copy."""
    output, first = served.times(lengths, batch)
    return ServingPoint(
        served=served, lengths=lengths, batch=batch, servers=servers, output=output, first=first
    )


def fast_enough(question: ServingQuestion, one: ServingPoint) -> bool:
    """Whether each user's tokens come as fast as asked."""
    slow = question.latency is not None and one.output.estimate > question.latency
    late = question.first_token is not None and one.first.estimate > question.first_token
    return not slow and not late


def meets(question: ServingQuestion, one: ServingPoint) -> bool:
    """Whether a point meets every target."""
    enough = question.throughput is None or one.tokens_per_second >= question.throughput
    served = question.users is None or one.users >= question.users
    return enough and served and fast_enough(question, one)


def points_on(
    question: ServingQuestion, served: ServedSetup, lengths: Lengths, gpus: int
) -> Iterator[ServingPoint]:
    """Points of a set-up on `gpus` GPUs: with the users asked for, else with every batch."""
    servers, rest = divmod(gpus, served.setup.gpus)
    if rest or not servers:
        return
    most = served.most_users(lengths)
    if question.users is not None:
        batch = -(-question.users // (servers * served.copies))
        if batch <= most:
            yield point(served, lengths, batch, servers)
        return
    best = largest_batch(question, served, lengths)
    for batch in sorted({*doubled(most), most, *([best] if best else [])}):
        yield point(served, lengths, batch, servers)


def largest_batch(question: ServingQuestion, served: ServedSetup, lengths: Lengths) -> int:
    """The most users of a copy with whom it is fast enough; 0 where one is too many."""
    low, high = 0, served.most_users(lengths)
    while low < high:
        middle = (low + high + 1) // 2
        if fast_enough(question, point(served, lengths, middle, 1)):
            low = middle
        else:
            high = middle - 1
    return low


def fewest_servers(
    question: ServingQuestion, served: ServedSetup, lengths: Lengths, gpus: int
) -> ServingPoint | None:
    """The fewest servers that meet the targets on at most `gpus` GPUs."""
    batch = largest_batch(question, served, lengths)
    if not batch:
        return None
    servers = 1
    most = gpus // served.setup.gpus
    while servers <= most:
        copies = servers * served.copies
        used = batch if question.users is None else -(-question.users // copies)
        found = point(served, lengths, min(used, batch), servers)
        if meets(question, found):
            return found
        servers += 1 if servers < 64 else servers // 16
    return None


def order(question: ServingQuestion, one: ServingPoint) -> tuple[float, ...]:
    """Sort key: the best point by the question's goal comes first, then the simplest."""
    fast = (-one.tokens_per_second, len(one.served.setup.keys))
    if question.goal == FEWEST_GPUS:
        return (one.gpus, *fast)
    if question.goal == LARGEST_BATCH:
        return (-one.users, *fast)
    if question.goal == LONGEST_CONTEXT:
        return (-one.lengths.context, *fast)
    return fast


def front(points: list[ServingPoint]) -> list[ServingPoint]:
    """Points with which no other serves as many tokens per second and GPU, as fast for each user;
    the fastest for each user first.
    """
    found: list[ServingPoint] = []
    most = 0.0
    for one in sorted(points, key=lambda p: (p.output.estimate, -p.tokens_per_second / p.gpus)):
        if one.tokens_per_second / one.gpus > most:
            most = one.tokens_per_second / one.gpus
            found.append(one)
    return found
