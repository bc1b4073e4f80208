"""The runs of changed configurations: what each takes before and after a change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, to_builtins

from .checked import BAD_INPUT, Checked
from .fit_verdict import EXIT_CODES, FITS, UNSURE, WORDS
from .several import code_word, taken_together, worst_of
from .verdict_words import verdict_line

BAD = "bad_input"


class OfferedChange(Struct, frozen=True, kw_only=True):
    """What would make a run fit, in words, with its `section.key=value` settings."""

    words: str
    settings: tuple[str, ...]

    @property
    def options(self) -> str:
        """The settings as options of `check`."""
        return " ".join(f"--set {one}" for one in self.settings)


Remedies = Callable[[Checked], tuple[OfferedChange, ...]]


class Outcome(Struct, frozen=True, kw_only=True):
    """What a run takes of each GPU, as far as it can be told.

    - `code`: the exit code of its check; `sentence`: its one line, or why it has no figure
    - `takes_bytes`: what the card must have, for a server what it takes; `has_bytes`: the card's
    """

    code: int
    sentence: str
    takes_bytes: int | None = None
    has_bytes: int | None = None

    @property
    def verdict(self) -> str:
        """`fits`, `does_not_fit`, `cannot_tell` or `bad_input`."""
        return BAD if self.code == BAD_INPUT else code_word(self.code)

    @property
    def words(self) -> str:
        """The verdict in words."""
        return "bad input" if self.code == BAD_INPUT else WORDS[self.verdict]


class ChangedRun(Struct, frozen=True, kw_only=True):
    """A run of a changed file; `name` tells it from others of the file.

    `before` is None where it is new, `after` where it is gone.
    """

    path: str
    name: str = ""
    before: Outcome | None = None
    after: Outcome | None = None
    remedies: tuple[OfferedChange, ...] = ()

    @property
    def title(self) -> str:
        """The file, and which of its runs."""
        return f"{self.path}: {self.name}" if self.name else self.path

    @property
    def outcome(self) -> Outcome:
        """What decides: the run as it is now; one that is gone fits."""
        return self.after or Outcome(code=EXIT_CODES[FITS], sentence="removed")


class Changes(Struct, frozen=True, kw_only=True):
    """What changed since `base`: the runs of configurations; `passed_over`: files that could have
    been one, each with the reason; `others`: how many files of other kinds changed.
    """

    base: str
    runs: list[ChangedRun]
    passed_over: Mapping[str, str] = {}
    others: int = 0

    @property
    def code(self) -> int:
        """The worst exit code of the runs as they are now."""
        return worst_of(run.outcome.code for run in self.runs)

    @property
    def sentence(self) -> str:
        """How many runs there are of each verdict, the worst first."""
        runs = [run for run in self.runs if run.after is not None]
        if not runs:
            return "no training or serving configuration changed"
        worst_first = sorted(runs, key=lambda one: (one.outcome.code == 0, one.outcome.code))
        counts = Counter(one.outcome.words for one in worst_first)
        if len(runs) == 1:
            return f"1 run, {runs[0].outcome.words}"
        return f"{len(runs)} runs, " + ", ".join(f"{words} {n}" for words, n in counts.items())

    @property
    def data(self) -> dict[str, Any]:
        """The same as data."""
        verdict = BAD if self.code == BAD_INPUT else code_word(self.code)
        return {
            "verdict": verdict,
            "exit_code": self.code,
            "summary": self.sentence,
            "base": self.base,
            "runs": [_run_data(run) for run in self.runs],
            "passed_over": [{"path": path, "why": why} for path, why in self.passed_over.items()],
        }


def _run_data(run: ChangedRun) -> dict[str, Any]:
    return {
        "path": run.path,
        "name": run.name,
        "before": _outcome_data(run.before),
        "after": _outcome_data(run.after),
        "remedies": [to_builtins(one) for one in run.remedies],
    }


def _outcome_data(found: Outcome | None) -> dict[str, Any] | None:
    if found is None:
        return None
    figures = {"takes_bytes": found.takes_bytes, "has_bytes": found.has_bytes}
    return {"verdict": found.verdict, "summary": found.sentence, **figures}


def changed_runs(
    path: str, before: Sequence[Checked], after: Sequence[Checked], remedies: Remedies
) -> Iterator[ChangedRun]:
    """The runs of one file, each beside what it was: by name where there are several."""
    old, new = dict(_outcomes(before)), dict(_outcomes(after))
    if len(before) == len(after) == 1:
        old = dict(zip(new, old.values(), strict=True))
    helped = {id(now): remedies(one) for one, now in zip(after, new.values(), strict=False)}
    for name in {**new, **old}:
        now = new.get(name)
        alone = len(new) <= 1 and len(old) <= 1
        yield ChangedRun(
            path=path,
            name="" if alone else name,
            before=old.get(name),
            after=now,
            remedies=helped.get(id(now), ()),
        )


def _outcomes(checked: Sequence[Checked]) -> Iterator[tuple[str, Outcome]]:
    """What each command takes, and those on one GPU together; names that repeat are numbered."""
    seen: dict[str, int] = {}
    for one in checked:
        name = one.reading.name or one.reading.tool
        seen[name] = seen.get(name, 0) + 1
        yield f"{name} ({seen[name]})" if seen[name] > 1 else name, outcome(one)
    for number, shared in enumerate(taken_together(checked), 1):
        yield (
            f"together ({number})",
            Outcome(
                code=EXIT_CODES[shared.verdict],
                sentence=shared.text,
                takes_bytes=shared.total,
                has_bytes=shared.has,
            ),
        )


def outcome(checked: Checked) -> Outcome:
    """What one command takes."""
    if checked.result is None:
        return Outcome(code=checked.code, sentence="; ".join(checked.problems) or WORDS[UNSURE])
    return Outcome(
        code=checked.code,
        sentence=verdict_line(checked.result),
        takes_bytes=checked.takes,
        has_bytes=checked.result.gpu_memory_bytes,
    )
