"""Answers in a few hundred bytes, for readers that pay for each word: the verdict, the parts, and
what would help, as commands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..estimates.verdict_words import undecided, verdict_line
from .answer import merged
from .headline import MOST_UNDECIDED, asked_words
from .lines import WIDTH, gib, plain
from .longest_sequence import failure_words, longest_sequence_words
from .parts import parts
from .progress_bar import shorten
from .remedy_lines import FITS, MAY_FIT, remedy_words

if TYPE_CHECKING:
    from ..advice.diagnosis.diagnosis import Diagnosis
    from ..advice.planner.answers.plans import Plan, Plans
    from ..advice.serving.answers import Answers
    from ..advice.training.answers import TrainingAnswers
    from ..estimates.calculator import Estimate
    from ..estimates.result import MemoryResult
    from ..tools.reading.reading import Reading
    from .comparison import Compared
    from .parts import BreakdownRow
    from .serving.parts import MemoryPart

MOST_NOTES, LONGEST_NOTE = 3, 160
MOST_REMEDIES, MOST_PLANS, MOST_CONTEXTS = 4, 5, 4


def training_text(
    estimate: Estimate,
    answers: TrainingAnswers,
    commands: Sequence[str],
    asides: Sequence[str] = (),
) -> str:
    """A training run: its verdict, its parts, its longest sequence, asides, and its remedies, each
    with the command of the same place.
    """
    result = estimate.result
    lines = [
        *_verdict(result, verdict_line(result)),
        *failure_words(result),
        asked_words(estimate),
        f"GiB per GPU at the peak ({result.peak_instant}): {_sum([*merged(parts(estimate))])}",
        longest_sequence_words(estimate, answers.longest_sequence),
        *asides,
    ]
    for remedy, command in zip(answers.remedies, commands, strict=True):
        lines += [f"{FITS if remedy.certain else MAY_FIT}{remedy_words(remedy)}", f"  {command}"]
    return joined([*lines, *_notes(result, result.warnings)])


def _sum(found: Sequence[BreakdownRow] | Sequence[MemoryPart]) -> str:
    """Parts with their GiB; those that round to nothing are left out."""
    sizes = {one.title: gib(one.bytes) for one in found}
    shown = (f"{title} {size}" for title, size in sizes.items() if size != gib(0))
    return f"{' + '.join(shown)} = {gib(sum(one.bytes for one in found))}"


def serving_text(estimate: Estimate, answers: Answers, commands: Sequence[str]) -> str:
    """A server: its verdict, its parts, users by context, its speed, how it is started, and the
    changes worth trying first, each with the command of the same place.
    """
    from .serving.parts import busiest_rank, memory_parts
    from .serving.words import best_changes, change_gain, speed_words, start_note, verdict_words

    result, served = estimate.result, busiest_rank(estimate)
    tokens = f"; the cache holds {served.tokens:,} tokens" if served and served.tokens else ""
    rows = answers.users[::-2][:MOST_CONTEXTS][::-1]
    users = ", ".join(f"{row.users:,} with {row.context:,} tokens" for row in rows)
    lines = [
        *_verdict(result, verdict_words(estimate, answers)),
        asked_words(estimate),
        f"GiB per GPU: {_sum(memory_parts(estimate))}{tokens}",
        f"users: {users}" if users else "",
    ]
    if result.serving is not None and not result.serving.problem:
        lines += [f"speed: {speed_words(answers.speed)}"] if answers.speed else []
        start = result.serving.command
        lines += [f"start: {start}", start_note(start)] if start else []
    verb = "more with" if result.figures_fit else "fits with"
    for change, command in zip(best_changes(estimate, answers), commands, strict=True):
        cost = f" ({change.cost})" if change.cost else ""
        lines += [f"{verb} {change.title}: {change_gain(estimate, change)}{cost}", f"  {command}"]
    return joined([*lines, *_notes(result, estimate.resolved.warnings)])


def _verdict(result: MemoryResult, words: str) -> Iterator[str]:
    """The verdict, and what decides where it is open."""
    yield words
    for text in undecided(result)[:MOST_UNDECIDED]:
        yield f"decides: {text}"


def _notes(result: MemoryResult, warnings: Sequence[str]) -> Iterator[str]:
    """What was assumed, what is not modelled, and warnings."""
    limits = [f"{one.key}: {one.why}" for one in result.limits]
    for label, texts in (("note", warnings), ("assumed", result.assumed), ("not modelled", limits)):
        if texts:
            yield f"{label}: {'; '.join(_some(texts))}"


def _some(texts: Sequence[str], most: int = MOST_NOTES) -> list[str]:
    """The first of some texts, each shortened, and the number of the others."""
    shown = [shorten(one.rstrip("."), LONGEST_NOTE) for one in texts[:most]]
    return [*shown, *([f"and {len(texts) - most} more"] if len(texts) > most else [])]


def joined(lines: Iterable[str]) -> str:
    """The lines that are not empty."""
    return "\n".join(line for line in lines if line)


def reading_text(reading: Reading) -> str:
    """What a command was read as."""
    from .reading import reading_lines

    return plain(reading_lines(reading))


def diagnosis_text(found: Diagnosis) -> str:
    """Why a run died: the cause, the evidence, and what helps."""
    from .diagnosis import unknown_words

    if found.cause is None:
        notes = (f"note: {one}" for one in _some(found.notes))
        return joined([unknown_words(found), found.question, *notes])
    cause = found.cause
    where = [f"it died in {cause.phase}"] if cause.phase else []
    where += [f"for {cause.tensor}"] if cause.tensor else []
    lines = [f"{cause.certainty}: {cause.sentence}", "; ".join(where)]
    lines += [f"or {one.certainty}: {one.sentence}" for one in found.others[:2]]
    lines += [f"evidence: {one}" for one in _some(found.evidence)]
    for remedy in found.remedies[:MOST_REMEDIES]:
        fits = " (fits, by an estimate)" if remedy.fits else ""
        lines += [f"try{fits}: {remedy.sentence}", f"  {remedy.command}" * bool(remedy.command)]
    return joined([*lines, found.question, *(f"note: {one}" for one in _some(found.notes))])


def comparison_text(found: Compared) -> str:
    """Two runs: which takes more, the verdict on each, the parts that differ, and the cause."""
    from ..advice.comparison import limits_of_one
    from .comparison import MOST_SHOWN, cause_words, difference, part_rows, signed

    apart, same = list[str](), list[str]()
    for title, ours, theirs in part_rows(found):
        first, second = ("-" if one is None else gib(one, 2) for one in (ours, theirs))
        text = f"{title.strip()} {first}"
        more = signed((theirs or 0) - (ours or 0))
        same += [text] if first == second else []
        apart += [] if first == second else [f"{title.strip()} {first} → {second} ({more})"]
    results = (found.first.result, found.second.result)
    lines = [difference(found)]
    lines += [
        f"{letter} {name}: {verdict_line(one)}"
        for letter, name, one in zip("AB", found.names, results, strict=True)
    ]
    lines += [f"GiB per GPU, A → B: {', '.join(apart)}" if apart else ""]
    lines += [f"the same in both: {', '.join(same)}" if same else ""]
    for cause in found.causes[:MOST_SHOWN]:
        pool = cause.adds_cache_bytes
        cache = "" if pool is None else f", KV cache {signed(pool)}"
        lines.append(f"by itself, {cause_words(cause)}: {signed(cause.adds_bytes)} GiB{cache}")
    lines += [
        f"not modelled in one: {one}" for one in _some([*limits_of_one(found.first, found.second)])
    ]
    return joined(lines)


def plans_text(plans: Plans) -> str:
    """The best plan with its reasons, and the next ones; or what would fit."""
    from .plan.text import nothing_lines
    from .plan.words import question_words, setup_words, short_setups

    lines = [question_words(plans)]
    if not any(one.fits_on_gpu for one in plans.plans):
        lines.append(plain(nothing_lines(plans, 2 * WIDTH)))
    best = plans.plans[:1]
    for plan in best:
        lines += [f"1. {', '.join(setup_words(plan))}", f"  {_plan_figures(plan)}"]
        lines += [f"  {one}" for one in plan.why[:2]]
    some = plans.plans[:MOST_PLANS]
    for plan, words in zip(some[1:], short_setups(some)[1:], strict=True):
        lines.append(f"{plan.rank}. {words}: {_plan_figures(plan, brief=True)}")
    space = f"{plans.space.set_ups:,} set-ups evaluated, {plans.space.feasible:,} fit"
    limits = f"not searched or modelled: {'; '.join(_some(plans.limits, 2))}"
    return joined([*lines, space, limits if plans.limits else ""])


def _plan_figures(plan: Plan, *, brief: bool = False) -> str:
    """Memory and time of a plan, and the first with what is left and the cost."""
    from .plan.amounts import card, card_bytes
    from .plan.figures import MILLI, interval
    from .plan.text import speed_words

    needs = gib(card_bytes(plan))
    if brief:
        scale, unit = (MILLI, "ms a token") if plan.serving else (1.0, "s a step")
        return f"{needs} GiB, {interval(plan.step_seconds, scale)} {unit}"
    has = gib(card(plan.run.get("hardware") or {}).memory_bytes)
    fits = "fits" if plan.fits_on_gpu else "does not fit"
    left = f"{gib(abs(plan.headroom_bytes))} GiB {'to spare' if plan.fits_on_gpu else 'short'}"
    return f"{fits}: needs {needs} of {has} GiB per GPU, {left}; {', '.join(speed_words(plan))}"
