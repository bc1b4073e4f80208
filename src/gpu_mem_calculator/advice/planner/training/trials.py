"""Set-ups of a question, replayed: the fastest of those that fit by their ledgers come first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby, islice, zip_longest
from typing import Any

from msgspec.structs import replace

from ....runfile.text.errors import InputError
from ....training.knob import IMPLEMENTATION, LOSS
from ..answers.plans import Plan
from ..answers.question import PlanQuestion
from .full import full_plan, ledger_plan, tried_run
from .search import Found, SetUp, at_sizes, named_settings, search
from .space import base_file, structures
from .structures import Structure, run_file

IN_FULL = 20  # set-ups that are estimated in full, besides those of the front
STEP = 0.05  # of the memory, between two set-ups of the front
EARLY = 8  # structures of each engine that are searched for a first plan
ROOMY = 0.9  # of the card: a set-up that takes no more leaves room for what the replay adds
TRIED_FIRST = 4  # set-ups of an engine, of which the first that fits is its best
MOST_TRIED = 60  # set-ups that are estimated in full to find as many that fit
KERNELS = (LOSS, IMPLEMENTATION)
Progress = Callable[[str, float], None]  # what is done, and which part of it is


class Trials:
    """The set-ups of a question that were replayed, each once.

    - every, found: the structures that were searched, and what the search found
    - whole: whether these are all structures of the question
    - fitting: plans of those that fit, in the order of the trials
    - order: those that will be tried, where all goes well
    - left_out: why set-ups that the search accepted are refused after all
    """

    def __init__(
        self, question: PlanQuestion, every: list[Structure], found: Found, *, whole: bool = True
    ) -> None:
        self.question, self.every, self.found, self.whole = question, every, found, whole
        self.base = base_file(question)
        self.fitting: list[Plan] = []
        self.left_out: list[str] = []
        self.order: list[SetUp] = []
        self._seen: set[str] = set()
        self._shown: set[str] = set()
        self._known: dict[str, Plan | None] = {}

    @property
    def number(self) -> int:
        """How many were tried."""
        return len(self._seen)

    def add(self, set_up: SetUp) -> Plan | None:
        """Try a set-up, unless one that differs in its kernels alone fits; its plan if it fits."""
        settings = named_settings(set_up)
        name, shown = str(settings), _without_kernels(settings)
        if name in self._seen or shown in self._shown:
            return None
        self._seen.add(name)
        try:
            tried = tried_run(self._run_file(set_up), settings)
        except InputError as error:
            self.left_out.append(error.problems[0])
            return None
        if not tried.fits:
            return None
        plan = full_plan(tried, price=self.question.price, tokens=self.question.tokens)
        self.fitting.append(plan)
        self._shown.add(shown)
        return plan

    def _run_file(self, set_up: SetUp) -> dict[str, Any]:
        """The run file of a set-up."""
        chosen = set_up.structure.settings
        return run_file(self.base, chosen, set_up.sizes, self.question.sequences)

    @property
    def fastest(self) -> Plan | None:
        """The fastest of those that fit."""
        return min(self.fitting, key=_fastest_first, default=None)

    def plans(self) -> list[Plan]:
        """Those that fit, fastest first."""
        return _ranked(self.fitting)

    def with_waiting(self) -> list[Plan]:
        """Those that fit and those that wait for their replay, fastest first."""
        known, waiting = set(self._shown), []
        for one in self.order:
            settings = named_settings(one)
            name, shown = str(settings), _without_kernels(settings)
            if name not in self._seen and shown not in known:
                known.add(shown)
                waiting.append(self._by_ledger(one, name))
        return _ranked([*self.fitting, *(one for one in waiting if one is not None)])

    def _by_ledger(self, set_up: SetUp, name: str) -> Plan | None:
        """The plan of a set-up by its ledger; None where a rule refuses it."""
        if name not in self._known:
            resolved = at_sizes(set_up.structure, set_up.sizes, self.question.sequences)
            run = self._run_file(set_up)
            known = None if resolved is None else ledger_plan(set_up, resolved, run, self.question)
            self._known[name] = known
        return self._known[name]


def _ranked(plans: Iterable[Plan]) -> list[Plan]:
    ordered = sorted(plans, key=_fastest_first)
    return [replace(plan, rank=rank) for rank, plan in enumerate(ordered, 1)]


def _fastest_first(plan: Plan) -> tuple[float, int]:
    return plan.step_seconds.estimate, plan.needs_bytes


def early_trials(question: PlanQuestion, every: list[Structure]) -> Trials | None:
    """Trials with a set-up that fits, found before the whole space is searched; None where none is
    found quickly.

    The last structures of an engine save most memory: those of all engines are searched in turns.
    The fastest set-up that leaves room on the card is tried, else the one that takes least.
    """

    def first(one: SetUp) -> tuple[bool, float]:
        roomy = one.total_bytes <= ROOMY * one.structure.resolved.hardware.memory_bytes
        return not roomy, one.seconds if roomy else one.total_bytes

    engines = [list(found)[::-1] for _, found in groupby(every, key=lambda one: one.engine)]
    for turn in islice(zip_longest(*engines), EARLY):
        known = [one for one in turn if one is not None]
        found = search(known, question.sequences)
        trials = Trials(question, known, found, whole=False)
        if found.kept and trials.add(min(found.kept, key=first)) is not None:
            return trials
    return None


def silent(text: str, part: float) -> None:
    """Progress that nobody asked for is not told."""


def searched(
    question: PlanQuestion, report: Progress = silent, early: Callable[[Trials], None] | None = None
) -> Trials:
    """A question whose space is searched, and none of whose set-ups is tried.

    `early`: called with trials of a few structures that have a set-up which fits
    """
    refused: list[str] = []
    every = list(structures(question, refused))
    if not every:
        raise InputError(nothing_possible(question, refused))
    count = len(every)
    report(f"searching, 0 of {count:,}", 0.0)
    if early is not None and (first := early_trials(question, every)) is not None:
        early(first)
    found = search(
        every,
        question.sequences,
        lambda done: report(f"searching, {done:,} of {count:,}", done / count),
    )
    return Trials(question, every, found)


def nothing_possible(question: PlanQuestion, refused: list[str]) -> str:
    """Why no set-up is possible: what refused each, else that no sizes make up GPUs and batch."""
    if refused:
        return f"no set-up is possible: {refused[0]}"
    gpus, batch = int(question.hardware["num_gpus"]), question.sequences
    below, above = batch // gpus * gpus, -(-batch // gpus) * gpus
    near = f"{below} or {above}" if below else str(above)
    fix = f"try --global-batch {near}" if batch % gpus else "try fewer --fix, or other --gpus"
    return f"no set-up is possible: no sizes make up {gpus} GPUs and {batch} sequences; {fix}"


def try_best(
    trials: Trials,
    report: Progress = silent,
    wanted: int = 0,
    tried: Callable[[Plan | None], None] | None = None,
) -> None:
    """Try the fastest set-up of each engine that fits with replay and margin, the fastest of all
    until enough fit, and those of the front.

    - wanted: only as many of all, and those of the front only where no faster one fits
    - tried: called before the first, and after each with its plan, None where it does not fit
    """
    order = sorted(trials.found.kept, key=lambda one: (one.seconds, one.total_bytes))
    count = wanted or max(IN_FULL, trials.question.top)
    engines = {} if wanted else {one.structure.engine: None for one in order}
    firsts = [[one for one in order if one.structure.engine == name] for name in engines]
    front = ledger_front(order)
    trials.order = [*(own[0] for own in firsts), *order[:count], *front]

    if tried is not None:
        report(f"replaying, 0 of {count}", 0.0)
        tried(None)

    def attempt(set_up: SetUp, text: str, done: int, whole: int) -> bool:
        report(f"{text}, {done} of {whole}", done / whole)
        plan = trials.add(set_up)
        if tried is not None:
            tried(plan)
        return plan is not None

    for own in firsts:
        done = len(trials.fitting)
        any(attempt(one, "replaying", done, max(done + 1, count)) for one in own[:TRIED_FIRST])
    for set_up in order:
        done = len(trials.fitting)
        if done >= count or trials.number >= MOST_TRIED:
            break
        attempt(set_up, "replaying", done, count)
    for done, set_up in enumerate([] if wanted and trials.fitting else front):
        attempt(set_up, "replaying the front", done, len(front))


def _without_kernels(settings: Mapping[str, Any]) -> str:
    """What a set-up is called without its kernels: of those that differ in nothing else, the
    fastest that fits is shown.
    """
    return str({key: value for key, value in settings.items() if key not in KERNELS})


def ledger_front(order: Iterable[SetUp]) -> list[SetUp]:
    """Of set-ups sorted by time, those that take less memory than every faster one.

    Each takes less than the one before by a few percent at least (`STEP`).
    """
    front: list[SetUp] = []
    for set_up in order:
        if not front or set_up.total_bytes < front[-1].total_bytes * (1 - STEP):
            front.append(set_up)
    return front
