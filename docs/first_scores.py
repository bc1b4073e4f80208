"""First scores: the errors on runs that nobody had looked at, and the README's table of accuracy.

Once a run has been looked at, a better figure for it is hindsight. So a first score is written down
here once, and never changed.
"""

from __future__ import annotations

import capped_trials
import gptlite_tables
import scores
import served
from msgspec import Struct

HEAD = [
    "runs",
    "seen before?",
    "number",
    "figure",
    "first score: mean, worst",
    "today: mean, worst",
]
NEW, SEEN = "no", "yes"
LATEST = (
    "programs_drawn",
    "features_drawn",
    "unseen",
    "kept",
    "megatron_deepspeed",
)  # the files of the README


class First(Struct, frozen=True):
    """The errors of a file's runs, before anything was changed because of them."""

    file: str
    metric: str
    runs: int
    mean: str
    worst: str = ""  # with its sign, if it was written down

    @property
    def shown(self) -> str:
        """Mean and worst in a cell."""
        return f"{self.mean}, {self.worst}" if self.worst else self.mean


FIRST = (
    First("programs_drawn", "allocated", 146, "0.41 %", "-20.18 %"),
    First("programs_drawn", "reserved", 140, "1.30 %", "+35.76 %"),
    First("features_drawn", "allocated", 75, "0.25 %", "+15.07 %"),
    First("features_drawn", "reserved", 75, "1.17 %", "+20.45 %"),
    First("unseen", "allocated", 44, "0.12 %", "-0.90 %"),
    First("kept", "allocated", 11, "0.51 %", "-5.37 %"),
    First("kept", "reserved", 11, "1.39 %"),
    First("kept", "needs", 11, "1.87 %"),
    First("megatron_deepspeed", "allocated", 12, "0.002 %", "0.011 %"),
    First("features", "allocated", 218, "0.37 %", "+20.81 %"),
    First("random", "allocated", 74, "0.78 %", "-19.7 %"),
    First("options", "allocated", 149, "0.70 %", "-21.2 %"),
)


def _summed(errors: list[float]) -> str:
    """Mean and worst of some errors."""
    return f"{sum(map(abs, errors)) / len(errors):.2f} %, {max(errors, key=abs):+.2f} %"


def first(one: First) -> list[str]:
    """A row of the table: a first score, and the same file now."""
    title, metric = scores.FILES[one.file][0], scores.METRICS[one.metric]
    errors = scores.errors(one.metric, files=(one.file,))
    rest = "" if len(errors) == one.runs else f" (all {len(errors)})"
    return [title, NEW, str(one.runs), metric, one.shown, f"{_summed(errors)}{rest}"]


def every() -> list[list[str]]:
    """Every first score of a file of measured runs, the latest files first."""
    return [first(one) for one in FIRST]


def said(file: str) -> str:
    """The first scores of a file in a sentence, or nothing."""
    found = [f"{scores.METRICS[one.metric]} {one.shown}" for one in FIRST if one.file == file]
    return f" First score (mean, worst): {'; '.join(found)}." if found else ""


def example() -> list[str]:
    """The worked example: configurations that were estimated before they were measured."""
    then, now = gptlite_tables.first_errors(), gptlite_tables.errors()
    title = "[GPT-lite](docs/gptlite.md) on DeepSpeed, without pipelines"
    return [title, NEW, str(len(then)), "allocated", *map(_summed, (then, now))]


def survivors() -> list[str]:
    """The runs that were tried with torch limited to what was predicted."""
    found = capped_trials.drawn()
    lived = capped_trials.survived(found, "needs+margin")
    title = "drawn at random, run with torch limited to needs + margin"
    return [title, NEW, str(len(found)), "survived", lived, "not run again"]


def logs(engine: str) -> list[str]:
    """The start-up logs of a server that were found later."""
    found = served.FIRST[engine]
    mean, median = found.errors["kv_pool"]
    now = _summed(served.errors(served.rows(engine, "serving_unseen"), "kv_pool"))
    title = f"{served.ENGINES[engine]} start-up logs"
    return [title, NEW, str(found.logs), "KV pool", f"{mean}, median {median}", now]


def looked_at(metric: str) -> list[str]:
    """All files, most of which were used in development."""
    errors = scores.errors(metric)
    title, figure = "all measured runs", scores.METRICS[metric]
    return [title, f"most: {SEEN}", str(len(errors)), figure, "-", _summed(errors)]


def pipelines() -> str:
    """What the table leaves out of the worked example."""
    low, high = min(errors := gptlite_tables.first_pipeline_errors()), max(errors)
    return f"GPT-lite's pipelines were {low:.0f} to {high:.0f} % too high at first and were fixed."


def lead() -> list[list[str]]:
    """The README's table: runs that nobody had looked at come first."""
    return [
        *(first(one) for one in FIRST if one.file in LATEST and one.metric != "reserved"),
        example(),
        survivors(),
        *map(logs, served.FIRST),
        *map(looked_at, ("allocated", "needs")),
    ]
