"""Writes the tables of timing.md: predicted step times against public ones, by source.

python docs/timing.py            every row: about a minute
python docs/timing.py --spread   prints the factors of the interval by class, for interval.py
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from statistics import mean, median

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from evidence import filled, table  # noqa: E402
from tests.ground_truth.timing.baseline import left_out_errors, mean_size  # noqa: E402
from tests.ground_truth.timing.predict import Predictions, predictions  # noqa: E402
from tests.ground_truth.timing.score import Predicted, Score, score  # noqa: E402
from tests.ground_truth.timing.spread import HERE, Residual, covered, factors, of_rows, of_steps  # noqa: E402
from tests.ground_truth.timing.translate import every_run  # noqa: E402

from gpu_mem_calculator.timing.training.step import FACTORS  # noqa: E402

PAGE = ROOT / "docs" / "timing.md"
# what a group of sources is, and which errors were asked of it: mean in percent
GROUPS = {
    "tuned, dense": ("NVIDIA dgxc", "Korthikanti", "Megatron SC21", "MegaScale", "Llama 3"),
    "experts": ("NVIDIA dgxc",),
    "untuned sweeps": ("vTrain", "BigScience", "llm-foundry"),
}
HEAD = (
    "",
    "runs",
    "mean",
    "median",
    "p90",
    "bias",
    "pairs in order",
    "regret",
    "in interval",
    "constant MFU",
)


@cache
def every_prediction() -> Predictions:
    """Predictions for every row that is used."""
    return predictions(every_run()[0])


def by_source() -> dict[str, list[Predicted]]:
    """Predictions, by source."""
    return _sources(every_prediction().found)


def _sources(every: Iterable[Predicted]) -> dict[str, list[Predicted]]:
    found: dict[str, list[Predicted]] = {}
    for one in every:
        found.setdefault(one.run.source, []).append(one)
    return found


def has_experts(one: Predicted) -> bool:
    """Whether a run's model has experts."""
    return "num_experts" in one.run.file["model"]


def baselines() -> dict[str, dict[str, float]]:
    """Errors of the constant MFU: source, then row."""
    made = every_prediction()
    errors = left_out_errors(made.utilised)
    rows: dict[str, list[str]] = {}
    for one in made.found:
        rows.setdefault(one.run.source, []).append(one.run.row.id)
    return {name: dict(zip(ids, errors[name], strict=True)) for name, ids in rows.items()}


def line(title: str, found: Sequence[Predicted]) -> list[str]:
    """A line of the table."""
    made: Score = score(found)
    known = {row: error for rows in baselines().values() for row, error in rows.items()}
    constant = mean_size(known[one.run.row.id] for one in found)
    return [
        title,
        f"{made.n:,}",
        *(f"{value:.1f} %" for value in (made.mean, made.median, made.p90)),
        f"{made.bias:+.1f} %",
        "-" if made.ordered is None else f"{made.ordered:.1f} % of {made.pairs:,}",
        "-" if made.regret is None else f"{made.regret:.1f} %",
        f"{made.inside:.0f} %",
        f"{constant:.1f} %",
    ]


def groups() -> Iterator[tuple[str, list[Predicted]]]:
    """The groups of sources that have a bar."""
    every = by_source()
    for title, sources in GROUPS.items():
        runs = [one for source in sources for one in every.get(source, [])]
        if title != "untuned sweeps":
            runs = [one for one in runs if has_experts(one) == (title == "experts")]
        yield title, runs


def scores() -> str:
    """Every source, then the groups."""
    lines = [line(source, found) for source, found in by_source().items()]
    lines += [line(f"**{title}**", found) for title, found in groups() if found]
    return table(HEAD, lines)


def targets() -> str:
    """What the times are meant to reach, and whether they do."""
    every, groups_now = by_source(), dict(groups())
    constant = {name: mean_size(errors.values()) for name, errors in baselines().items()}
    means = {name: score(found).mean for name, found in every.items()}
    vtrain = score(every["vTrain"])
    worse = [name for name in every if means[name] > constant[name]]
    third = [name for name in GROUPS["untuned sweeps"] if means[name] > constant[name] / 3]
    inside = mean(100 * in_interval(one) for one in residuals())
    unseen = [100 * abs(1 / one.ratio - 1) for one in residuals() if _unseen(one)]
    lines = [
        _target("vTrain: mean at most 7 %", f"{vtrain.mean:.1f} %", vtrain.mean <= 7),
        _target("vTrain: 98 % of pairs in order", f"{vtrain.ordered:.1f} %", vtrain.ordered >= 98),
        _target("vTrain: regret at most 3 %", f"{vtrain.regret:.1f} %", vtrain.regret <= 3),
    ]
    for title, most in (("tuned, dense", 8), ("experts", 20)):
        found = score(groups_now[title]).mean
        lines.append(_target(f"{title}: mean at most {most} %", f"{found:.1f} %", found <= most))
    lines += [
        _target("no source worse than the constant MFU", _but(worse), not worse),
        _target("untuned sweeps: a third of its error", _but(third), not third),
        _target("80 % of steps in the interval", f"{inside:.0f} %", inside >= 80),
        _target(
            "other half of the H200: mean at most 7 %", f"{mean(unseen):.1f} %", mean(unseen) <= 7
        ),
    ]
    return table(["target", "now", "reached"], lines)


def _target(what: str, now: str, reached: bool) -> list[str]:
    return [what, now, "yes" if reached else "no"]


def in_interval(one: Residual) -> bool:
    """Whether a measured step lies in the interval of its class."""
    low, high = FACTORS[one.kind]
    return low <= one.ratio <= high


def _but(names: Sequence[str]) -> str:
    return f"all but {', '.join(names)}" if names else "all"


def _unseen(one: Residual) -> bool:
    return one.source == HERE and not one.first


def refused() -> str:
    """How many rows are not used, and why."""
    reasons = Counter(one.why for one in every_run()[1])
    reasons.update(Counter(_short(one.why) for one in every_prediction().refused))
    lines = [[why, str(number)] for why, number in reasons.most_common()]
    return table(["why a row is not used", "rows"], lines)


def _short(why: str) -> str:
    """A refusal of the calculator without its figures."""
    return "pipeline stages of unequal length under Megatron-DeepSpeed" if "divide" in why else why


@cache
def residuals() -> tuple[Residual, ...]:
    """Every measured step over its estimate."""
    return (*of_rows(every_prediction().found), *of_steps())


def intervals() -> str:
    """Each class: its factors, and how many steps of each half and source lie inside."""
    lines = []
    for name, bounds in FACTORS.items():
        found = [one for one in residuals() if one.kind == name]
        halves = ([one for one in found if one.first == first] for first in (True, False))
        inside = (f"{covered(half, bounds):.0f} % of {len(half):,}" for half in halves)
        sources = dict.fromkeys(one.source for one in found)
        each = (
            f"{source} {covered([one for one in found if one.source == source], bounds):.0f} %"
            for source in sources
        )
        low, high = bounds
        lines.append([name, f"{low:g} to {high:g}", *inside, ", ".join(each)])
    head = ["class", "factors of the estimate", "inside, half that was used"]
    return table([*head, "inside, other half", "inside, by source"], lines)


def steps() -> str:
    """Steps that were measured here, by class and half."""
    found = [one for one in residuals() if one.source == HERE]
    lines = []
    for name in (*FACTORS, None):
        of_class = [one for one in found if name in (None, one.kind)]
        cells = [_sizes([one for one in of_class if one.first == first]) for first in (True, False)]
        if of_class:
            lines.append([name or "all", *(cell for half in cells for cell in half)])
    head = ["", "half that was used", "mean", "median", "other half", "mean", "median"]
    return table(head, lines)


def _sizes(found: Sequence[Residual]) -> list[str]:
    """Number, mean and median error of some steps."""
    sizes = [100 * abs(1 / one.ratio - 1) for one in found]
    if not sizes:
        return ["0", "-", "-"]
    return [str(len(sizes)), f"{mean(sizes):.1f} %", f"{median(sizes):.1f} %"]


def spread() -> Iterator[str]:
    """What the first half says of each class."""
    for name in FACTORS:
        half = [one for one in residuals() if one.kind == name and one.first]
        low, high = factors(half)
        yield f"{name}: {low:.3f} to {high:.3f} from {len(half)} steps"


def bodies() -> dict[str, str]:
    """What stands between the marks of the page."""
    return {
        "scores": scores(),
        "refused": refused(),
        "intervals": intervals(),
        "steps": steps(),
        "targets": targets(),
    }


def main(arguments: list[str]) -> int:
    """Write the page, or print the spread."""
    if "--spread" in arguments:
        print("\n".join(spread()))
        return 0
    PAGE.write_text(filled(PAGE.read_text("utf-8"), bodies()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
