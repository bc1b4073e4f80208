"""How far predicted step times are off, whether they rank set-ups, and how good the pick is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from statistics import mean, median

from msgspec import Struct

from .translate import TimedRun

VOCABULARY = "vocab_size"  # a set-up may round it for tensor parallelism: the model is the same


class Predicted(Struct, frozen=True, kw_only=True):
    """A run with its predicted seconds."""

    run: TimedRun
    estimate: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """In percent of the measured seconds."""
        return 100 * (self.estimate / self.run.seconds - 1)

    @property
    def inside(self) -> bool:
        """Whether the measured seconds lie in the interval."""
        return self.low <= self.run.seconds <= self.high


class Score(Struct, frozen=True, kw_only=True):
    """Statistics of the predictions of some runs, in percent; None where there is nothing to count.

    - mean, median, p90: of the sizes of errors; bias: the mean error
    - pairs: of set-ups for one question; ordered: share of them in the measured order
    - regret: how much longer the set-up that is predicted fastest takes than the fastest, in the
      mean over questions
    - inside: share of runs whose measured seconds lie in the interval
    """

    n: int
    mean: float
    median: float
    p90: float
    bias: float
    pairs: int
    ordered: float | None
    regret: float | None
    inside: float


def score(found: Sequence[Predicted]) -> Score:
    """The score of some predictions, at least one."""
    sizes = sorted(abs(one.error) for one in found)
    pairs = [in_order(a, b) for group in questions(found) for a, b in different(group)]
    regrets = [regret(group) for group in questions(found)]
    return Score(
        n=len(sizes),
        mean=mean(sizes),
        median=median(sizes),
        p90=sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))],
        bias=mean(one.error for one in found),
        pairs=len(pairs),
        ordered=100 * mean(pairs) if pairs else None,
        regret=mean(regrets) if regrets else None,
        inside=100 * mean(one.inside for one in found),
    )


def questions(found: Iterable[Predicted]) -> Iterator[list[Predicted]]:
    """Groups of set-ups that answer one question: model, cards, tokens of a step; two at least.

    Releases of a framework differ, and so does a machine on which something was changed: only runs
    of one release and one day are compared.
    """
    groups: dict[str, list[Predicted]] = {}
    for one in found:
        file = one.run.file
        hardware = {key: file["hardware"][key] for key in ("gpu", "num_gpus")}
        model = {key: value for key, value in file["model"].items() if key != VOCABULARY}
        row, seq = one.run.row, file["training"]["seq_len"]
        day = (one.run.source, row.framework, row.date)
        key = (day, model, hardware, one.run.tokens, seq)
        groups.setdefault(repr(key), []).append(one)
    yield from (group for group in groups.values() if len(group) > 1)


def different(group: list[Predicted]) -> Iterator[tuple[Predicted, Predicted]]:
    """Pairs of different set-ups; a set-up that was measured twice is no pair."""
    for a, b in combinations(group, 2):
        if a.run.file != b.run.file and a.run.seconds != b.run.seconds:
            yield a, b


def in_order(a: Predicted, b: Predicted) -> bool:
    """Whether the one that is predicted faster is."""
    return (a.estimate < b.estimate) == (a.run.seconds < b.run.seconds)


def regret(group: list[Predicted]) -> float:
    """How much longer our pick takes than the fastest, in percent."""
    pick = min(group, key=lambda one: one.estimate)
    return 100 * (pick.run.seconds / min(one.run.seconds for one in group) - 1)
