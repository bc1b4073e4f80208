"""Remedies for a run that does not fit: sets of changes with which it does, the smallest first.

Each change is estimated alone by the ledger. What a set of changes takes in a phase is predicted as
the sum of what each saves there; sets that may fit are estimated by the ledger, in the order of
their weight, and those that the ledger leaves open are replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations

from msgspec import Struct

from ...estimates.calculator import STEP, Estimate, full_estimate, surely_fits, verdict_by_ledger
from ...estimates.fit_verdict import CLEAR, FITS, SHORT, UNSURE
from ...estimates.lengths_result import can_expand
from ...estimates.result import MemoryResult
from ...estimates.verdict_words import total_bytes
from ...runfile.read import with_settings
from .change_candidates import ADAPTER, Candidate, further_savings, savings
from .last_resorts import (
    changed_estimate,
    last_resort,
    offload_on_one_gpu,
    shorter_sequence,
    smaller_evaluation,
    wider_runs,
    without_megatron,
)

LARGEST_SET = 3  # changes
LEDGERS, REPLAYS = 12, 2  # sets that are tried and do not fit, by the ledger and by a replay
MOST_WORK = 2**22
"""Ledgers that are tried, times the square of the layers: 264 of the deepest published dense model,
more than any search makes, and 4 of 1,024 layers, each of which takes up to a second."""
SLACK = 1.05  # what a set is predicted to take may be too high by this factor
MARGIN = 1.02  # with less than this times the ledger's figure, no replay leaves the margin free
EXPANDABLE = Candidate(
    "expandable segments",
    ("training.pytorch_alloc_conf=expandable_segments:True",),
    "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
)


class Remedy(Struct, frozen=True, kw_only=True):
    """Changes with which a run fits: their titles, settings in `--set` notation and cost in words.

    `saves_bytes` is the difference of the totals that are shown. `certain`: whether nothing that is
    not modelled could still add.
    """

    changes: tuple[str, ...]
    settings: tuple[str, ...]
    cost: str
    saves_bytes: int
    certain: bool = True


def adapts(remedy: Remedy) -> bool:
    """Whether one of a remedy's changes trains an adapter in the place of the model."""
    return ADAPTER in remedy.cost.split("; ")


class SingleChange(Struct, frozen=True):
    """A change, and what the run with it takes in each phase by the ledger, in bytes."""

    candidate: Candidate
    heights: tuple[int, ...]


def remedies(
    estimate: Estimate,
    longest: int | None = None,
    report: Callable[[list[Remedy]], None] = lambda _: None,
    most: int = 2,
) -> list[Remedy]:
    """Up to `most` sets of changes with which a run fits; none where it fits as it is.

    Changes that give the same training are tried first, then another engine, more GPUs or an
    adapter, then the `longest` sequence that fits, and last everything that helps, on a larger card
    if need be. `report` gets those that are found so far, each time that there is another one.
    """
    if estimate.result.figures_fit or estimate.served:
        return []
    search = RemedySearch(estimate, most, report)
    search.extend(smaller_evaluation(search.estimate))
    if search.expands and verdict_by_ledger(search.estimate.result) != SHORT:
        search.try_set((EXPANDABLE,))
    search.extend(savings(search.estimate))
    if len(search.found) < most:
        search.extend(further_savings(search.estimate))
    if len(search.found) < most:
        others = (*offload_on_one_gpu(search.estimate), *without_megatron(search.estimate))
        search.extend((*others, *wider_runs(search.estimate)))
    if len(search.found) < most and longest is not None:
        search.try_set((shorter_sequence(search.estimate, longest),))
    if all(map(adapts, search.found)) and search.tries > 0:
        changes = last_resort(search.estimate)
        if changes:
            search.add(changes)
    return search.found


class RemedySearch:
    """A search for sets of changes with which a run fits.

    - shown: the result that is to be changed; estimate: the same run by the ledger
    - singles: the changes so far that save memory in some phase
    - found: the remedies so far; failed: the settings that were tried and do not fit
    - tries: ledgers that may still be made
    """

    def __init__(
        self, estimate: Estimate, most: int, report: Callable[[list[Remedy]], None]
    ) -> None:
        self.shown, self.most, self.report = estimate.result, most, report
        self.estimate = estimate = full_estimate(estimate.result.run, replay=False)
        self.has = estimate.result.gpu_memory_bytes
        self.heights = phase_heights(estimate)
        self.singles: list[SingleChange] = []
        self.found: list[Remedy] = []
        self.failed: set[tuple[str, ...]] = set()
        self.known: dict[tuple[str, ...], Estimate | None] = {}  # by settings
        self.replays = 0
        self.tries = MOST_WORK // max(1, len(estimate.resolved.run.arch.layers)) ** 2
        self.expands = not estimate.serves and can_expand(estimate.resolved)

    def _changed(self, settings: tuple[str, ...]) -> Estimate | None:
        """The run with some settings; None where they are refused."""
        if settings not in self.known:
            self.tries -= 1
            self.known[settings] = changed_estimate(self.estimate, settings)
        return self.known[settings]

    def extend(self, candidates: Iterable[Candidate]) -> None:
        """Try sets that have some of the candidates, until enough remedies are found."""
        before = len(self.singles)
        self.singles += self._worthwhile(candidates)
        new = {one.candidate for one in self.singles[before:]}
        ledgers = 0
        for changes in self._sets():
            if len(self.found) >= self.most or ledgers >= LEDGERS or self.replays >= REPLAYS:
                return
            if self.tries <= 0:
                return
            if new.isdisjoint(changes) or self._is_alike(changes):
                continue
            word = self.try_set(changes)
            ledgers += word == SHORT
            if word == UNSURE and self.expands:
                self.try_set((*changes, EXPANDABLE))

    def _worthwhile(self, candidates: Iterable[Candidate]) -> Iterator[SingleChange]:
        """The candidates that save more than 1 % of the highest phase in some phase."""
        least = max(self.heights) // 100
        for candidate in candidates:
            changed = self._changed(candidate.settings) if self.tries > 0 else None
            if changed is None:
                continue
            heights = phase_heights(changed)
            if any(a - b > least for a, b in zip(self.heights, heights, strict=True)):
                yield SingleChange(candidate, heights)

    def _sets(self) -> list[tuple[Candidate, ...]]:
        """Sets of changes that may fit by the sum of their savings, the least weight first; one
        that may need a replay counts as one that weighs more.
        """
        ranked = []
        for size in range(1, LARGEST_SET + 1):
            for singles in combinations(self.singles, size):
                predicted = self._predicted(singles)
                if predicted <= SLACK * self.has and _compatible(singles):
                    changes = tuple(one.candidate for one in singles)
                    weight = sum(one.weight for one in changes) + (predicted * CLEAR > self.has)
                    ranked.append(((weight, size, predicted), changes))
        ranked.sort(key=lambda pair: pair[0])
        return [changes for _, changes in ranked]

    def _predicted(self, singles: tuple[SingleChange, ...]) -> int:
        """What a card must have by the sum of what changes save in each phase."""
        return max(
            now - sum(now - one.heights[phase] for one in singles)
            for phase, now in enumerate(self.heights)
        )

    def _is_alike(self, changes: tuple[Candidate, ...]) -> bool:
        """Whether a remedy that is found has fewer of the changes, or an adapter as these have."""
        settings = {setting for one in changes for setting in one.settings}
        adapter = any(one.cost == ADAPTER for one in changes)
        return any(
            settings.issuperset(remedy.settings) or (adapter and adapts(remedy))
            for remedy in self.found
        )

    def try_set(self, changes: tuple[Candidate, ...]) -> str:
        """The verdict of the run with some changes, `does_not_fit` where they are refused; a set
        that fits is added to what is found.

        A set that the ledger leaves open and a replay refuses has the verdict `cannot_tell`.
        """
        settings = merged_settings(changes)
        changed = None if settings in self.failed else self._changed(settings)
        if changed is None:
            return SHORT
        word = verdict_by_ledger(changed.result)
        if max(phase_heights(changed)) * MARGIN > changed.result.gpu_memory_bytes:
            word = SHORT
        elif word == UNSURE:
            word = FITS if surely_fits(changed) else UNSURE
            self.replays += word == UNSURE
        if word == FITS:
            self.add(changes)
        else:
            self.failed.add(settings)
        return word

    def add(self, changes: tuple[Candidate, ...]) -> None:
        """Add some changes to the remedies that are found."""
        self.found.append(self._remedy(changes))
        self.report(list(self.found))

    def _remedy(self, changes: tuple[Candidate, ...]) -> Remedy:
        """The remedy of some changes."""
        settings = merged_settings(changes)
        changed = self._changed(settings)
        assert changed is not None
        return Remedy(
            changes=tuple(one.title for one in changes),
            settings=settings,
            cost="; ".join(dict.fromkeys(one.cost for one in changes if one.cost)),
            saves_bytes=total_bytes(self.shown) - total_bytes(self._total(settings, changed)),
            certain=all(one.adds_bytes == 0 for one in changed.result.limits),
        )

    def _total(self, settings: tuple[str, ...], changed: Estimate) -> MemoryResult:
        """The figures of the run with some settings, replayed where those that are shown are."""
        if self.shown.needs_bytes is None:
            return changed.result
        return full_estimate(with_settings(self.estimate.result.run, settings)).result


def _compatible(singles: tuple[SingleChange, ...]) -> bool:
    """Whether no key is set twice."""
    keys = [s.partition("=")[0] for one in singles for s in one.candidate.settings]
    return len(keys) == len(set(keys))


def merged_settings(changes: Iterable[Candidate]) -> tuple[str, ...]:
    """The settings of some changes; a later one overrides."""
    settings = {s.partition("=")[0]: s for one in changes for s in one.settings}
    return tuple(settings.values())


def phase_heights(estimate: Estimate) -> tuple[int, ...]:
    """What a card must have in each phase of a step by the ledger, the busiest stage's."""
    outside = estimate.result.outside_torch_bytes
    return tuple(
        max(int(ledger.peak(phases=(phase,))) for ledger in estimate.ledgers) + outside
        for phase in STEP
    )
