"""Counts of outcomes: by command, by law, the slowest questions and the first failures."""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec import Struct, field

from tests.questions.asking import TOO_LONG, Outcome
from tests.questions.question import Question, as_text

FAILURES, SLOWEST, SENTENCES = 20, 10, 12


class Tally(Struct, kw_only=True):
    """What a run of questions found; two tallies can be added."""

    questions: int = 0
    replayed: int = 0
    ended: dict[str, dict[str, int]] = field(default_factory=dict)  # by name of the question
    laws: dict[str, list[int]] = field(default_factory=dict)  # looked at, broken
    slowest: list[tuple[float, str]] = field(default_factory=list)
    failures: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # by law
    too_long: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def count(self, question: Question, outcome: Outcome) -> None:
        """Count one question."""
        self.questions += 1
        self.replayed += question.replay
        self.seconds += outcome.seconds
        row = self.ended.setdefault(question.name, {})
        row[outcome.ended] = row.get(outcome.ended, 0) + 1
        for law, times in outcome.counts.items():
            self.laws.setdefault(law, [0, 0])[0] += times
        for law, why in outcome.broken:
            self.laws.setdefault(law, [0, 0])[1] += 1
            found = self.failures.setdefault(law, [])
            if len(found) < FAILURES:
                found.append((why, as_text(question)))
        if outcome.ended == TOO_LONG and len(self.too_long) < FAILURES:
            self.too_long.append(as_text(question))
        self.slowest = _slowest([*self.slowest, (outcome.seconds, as_text(question)[:400])])

    def add(self, other: Tally) -> None:
        """Add another tally."""
        self.questions += other.questions
        self.replayed += other.replayed
        self.seconds += other.seconds
        for name, row in other.ended.items():
            self.ended[name] = dict(Counter(self.ended.get(name, {})) + Counter(row))
        for law, (seen, broken) in other.laws.items():
            mine = self.laws.setdefault(law, [0, 0])
            mine[0], mine[1] = mine[0] + seen, mine[1] + broken
        for law, found in other.failures.items():
            self.failures[law] = [*self.failures.get(law, []), *found][:FAILURES]
        self.too_long = [*self.too_long, *other.too_long][:FAILURES]
        self.slowest = _slowest([*self.slowest, *other.slowest])

    @property
    def broken(self) -> int:
        """How many laws were broken, by any question."""
        return sum(broken for _, broken in self.laws.values())


def _slowest(found: list[tuple[float, str]]) -> list[tuple[float, str]]:
    return sorted(found, reverse=True)[:SLOWEST]


def lines(tally: Tally) -> list[str]:
    """The tally as text."""
    text = [
        f"{tally.questions:,} questions, {tally.replayed:,} with a replay, {tally.broken} broken"
    ]
    for name, row in sorted(tally.ended.items()):
        counts = ", ".join(f"{n:,} {how}" for how, n in sorted(row.items()))
        text.append(f"  {name:28} {counts}")
    for law, (seen, broken) in sorted(tally.laws.items()):
        text.append(f"  {law:52} {seen:>10,} {broken or ''}")
    for law, found in sorted(tally.failures.items()):
        text += [f"{law}:", *(f"  {why}\n    {question}" for why, question in found[:SENTENCES])]
    text += [f"too long: {one}" for one in tally.too_long]
    text += [f"{seconds:.1f} s: {question}" for seconds, question in tally.slowest[:3]]
    return text


def as_data(tally: Tally, command: str) -> dict[str, Any]:
    """The tally as JSON, with the command that made it."""
    import msgspec

    data: dict[str, Any] = msgspec.to_builtins(tally)
    return {"command": command, **data}
