"""Writes every figure and sample of README, accuracy.md, accuracy/, serving.md and the web page.

python docs/evidence.py            from the estimates, and the traces as last scored: a minute
python docs/evidence.py --samples  only the answers of commands in documents: seconds
python docs/evidence.py --worse    also writes where a group got worse, which is refused otherwise
python docs/evidence.py --trace    traces every measured run again first: about half an hour;
                                   --trace ddp fsdp: only those groups
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).parent))

import accuracy_page
import capped_trials
import deploy_samples
import faq
import first_scores
import group_pages
import samples
import scores
import served
from scores import FILES, GROUPS, METRICS, ROOT

from gpu_mem_calculator.lab.backtest.score import BacktestReport, summary
from gpu_mem_calculator.report.backtest_picture import picture

README, INDEX = ROOT / "README.md", ROOT / "docs" / "accuracy.md"
PICTURE, PAGES = ROOT / "docs" / "accuracy.svg", ROOT / "docs" / "accuracy"
PEERS = ROOT / "docs" / "peers.json"  # other calculators on the runs of runs.jsonl, in GiB
COLUMNS = ("allocated", "reserved", "needs", "device")
OURS = "this one"
MOST = 0.9  # of the runs: a calculator that answers fewer is not compared by group
GIB = 2**30


def percent(value: float | None) -> str:
    """A mean error as tables have it."""
    if value is None:
        return "-"
    return f"{value:.2f} %" if value < 10 else f"{value:.0f} %"


def cells(group: str | None, files: Iterable[str]) -> list[str]:
    """Number of runs, mean and worst of allocated, and the other means."""
    files = tuple(files)
    found = {metric: scores.errors(metric, group, files) for metric in COLUMNS}
    means = {metric: summary(errors).mean_abs_pct for metric, errors in found.items()}
    worst = max(found["allocated"], key=abs, default=0.0)
    number = str(len(found["allocated"]))
    rest = [percent(means[m]) for m in COLUMNS[1:]]
    return [number, percent(means["allocated"]), f"{worst:+.2f} %", *rest]


HEAD = ["runs", "allocated", "worst", *(METRICS[m] for m in COLUMNS[1:])]


def table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    head = list(head)
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def lead() -> str:
    """The README's table: runs that nobody had looked at first, then the other calculators."""
    tools = [f"{tool} {percent(size)}" for size, tool in nearest(None)]
    return (
        f"{table(first_scores.HEAD, first_scores.lead())}\n\n"
        f"Other calculators, on {len(scores.errors('allocated', files=('runs',)))} of these runs: "
        f"{', '.join(tools)}. {first_scores.pipelines()}"
    )


def nearest(group: str | None) -> list[tuple[float, str]]:
    """The two other calculators with the least mean error that answer most runs of a group."""
    found = peer_errors()
    least = MOST * len(_sizes(found[OURS], group))
    each = ((tool, _sizes(errors, group)) for tool, errors in found.items() if tool != OURS)
    return sorted((mean(sizes), tool) for tool, sizes in each if sizes and len(sizes) >= least)[:2]


def compared() -> str:
    """Each group of the first file, beside the nearest other calculators."""
    lines = []
    for group, title in (*GROUPS.items(), (None, "all")):
        if _sizes(peer_errors()[OURS], group):  # the first file has the group
            named = [f"{tool} {percent(size)}" for size, tool in nearest(group)]
            lines.append([title, *cells(group, ("runs",)), *named, *["-"] * (2 - len(named))])
    return table(["", *HEAD, "best other", "next"], lines)


def others() -> str:
    """Each file of measured runs but the first."""
    rest = [name for name in FILES if name != "runs"]
    lines = [[FILES[name][0], *cells(None, (name,))] for name in rest]
    return table(["", *HEAD], [*lines, ["all files", *cells(None, FILES)]])


def traces() -> str:
    """Traces: allocated, reserved and needs over every run they cover."""
    lines = []
    for metric in scores.TRACE_METRICS:
        found = [row[metric] for row in scores.traced().values() if metric in row]
        made, worst = summary(found), max(found, key=abs)
        lines.append(
            [
                metric,
                str(made.n),
                percent(made.mean_abs_pct),
                percent(made.median_abs_pct),
                f"{worst:+.2f} %",
            ]
        )
    head = ["trace, runs without DeepSpeed", "number", "mean error", "median", "worst"]
    return table(head, lines)


Errors = Mapping[str, list[float]]


def _sizes(by_group: Errors, group: str | None) -> list[float]:
    """Sizes of errors, of a group or of all."""
    found = by_group.values() if group is None else [by_group.get(group, [])]
    return [abs(error) for errors in found for error in errors]


def peer_errors() -> dict[str, dict[str, list[float]]]:
    """Errors of the allocated peak on runs.jsonl: calculator, then group."""
    rows = {row.id: row for _, row in scores.rows(files=("runs",))}
    ours = {name: row.metrics["allocated"].predicted / GIB for name, row in rows.items()}
    found: dict[str, dict[str, list[float]]] = {}
    for tool, answers in {OURS: ours, **json.loads(PEERS.read_text(encoding="utf-8"))}.items():
        by_group = found.setdefault(tool, {})
        for name, gib in answers.items():
            measured = rows[name].metrics["allocated"].measured
            error = 100 * (gib * GIB / measured - 1)
            by_group.setdefault(rows[name].group, []).append(error)
    return found


def peers() -> str:
    """Every other calculator: its mean error on the same runs, by group."""
    found = peer_errors()
    order = sorted(found, key=lambda tool: mean(_sizes(found[tool], None)))
    groups = {group: title for group, title in GROUPS.items() if _sizes(found[OURS], group)}
    lines = []
    for tool in order:
        each = [_sizes(found[tool], group) for group in (None, *groups)]
        lines.append([tool, str(len(each[0])), *(percent(mean(e)) if e else "-" for e in each)])
    return table(["calculator", "runs", "all", *groups.values()], lines)


def made() -> str:
    """When, with what, and how many runs."""
    stored = scores.stored()
    libraries = ", ".join(f"{name} {' and '.join(v)}" for name, v in scores.versions().items())
    number = sum(1 for _ in scores.rows())
    return (
        f"Written on {stored['date']} by version {stored['version']} from {number} runs on one "
        f"NVIDIA H200: {libraries}."
    )


def files() -> str:
    """What each file of measured runs is."""
    parts = []
    for name, (title, use) in FILES.items():
        number = len(scores.report(name).rows)
        first = first_scores.said(name)
        parts.append(f"- `tests/ground_truth/{name}.jsonl` ({title}, {number} runs): {use}{first}")
    return "\n".join(parts)


def groups() -> str:
    """The index of the groups' pages, over all files."""
    lines = [
        [f"[{title}](accuracy/{group}.md)", *cells(group, FILES), *_more(group)]
        for group, title in GROUPS.items()
    ]
    return table(["", *HEAD, METRICS["startup"], METRICS["host"], "phases > 3 %"], lines)


def needs() -> str:
    """Which runs have *needs*, and how far off it is on those that nobody had looked at."""
    kept = scores.errors("needs", files=("kept",))
    seen = scores.errors("needs", files=[name for name in FILES if name != "kept"])
    return (
        f"*Needs* was measured in {len(seen) + len(kept)} runs. {len(seen)} of them were used in "
        f"development (mean {percent(summary(seen).mean_abs_pct)}); {len(kept)} were kept aside "
        f"(mean {percent(summary(kept).mean_abs_pct)}, worst {max(kept, key=abs):+.1f} %)."
    )


def _more(group: str) -> list[str]:
    """Start-up, host, and how many phases are off."""
    means = [summary(scores.errors(m, group)).mean_abs_pct for m in ("startup", "host")]
    phases = [one.error_pct for _, row in scores.rows(group) for one in row.phases.values()]
    off = sum(e is not None and abs(e) > group_pages.LIMITS["phase"] for e in phases)
    return [*map(percent, means), f"{off} of {len(phases)}"]


def score() -> str:
    """The picture: every run of every file, predicted against measured."""
    every = tuple(row for _, row in scores.rows())
    return picture(BacktestReport(rung="estimate", rows=every, refused=()), "every measured run")


def filled(text: str, bodies: Mapping[str, str]) -> str:
    """A document with what stands between its marks made anew."""
    for mark, body in bodies.items():
        new = f"<!-- {mark} -->\n{body}\n<!-- end -->"
        pattern = rf"<!-- {mark} -->.*?<!-- end -->"
        text = re.sub(pattern, lambda _, new=new: new, text, flags=re.DOTALL)  # type: ignore[misc]
    return text


def documents() -> dict[Path, str]:
    """Every document that has figures in it, as it should be now."""
    index = {
        "made": made(),
        "first": table(first_scores.HEAD, first_scores.every()),
        "trials": table(capped_trials.HEAD, capped_trials.rows()),
        "groups": groups(),
        "needs": needs(),
        "files": files(),
        "others": others(),
        "traces": traces(),
        "compared": compared(),
        "peers": peers(),
    }
    blocks = sampled()
    blocks[README]["accuracy"] = lead()
    blocks[INDEX] = index
    found = {path: filled(path.read_text("utf-8"), bodies) for path, bodies in blocks.items()}
    found[PICTURE] = score()
    for page in (INDEX, served.PAGE, served.GUIDE):
        found[page] = filled(found.get(page) or page.read_text("utf-8"), served.bodies())
    for group in GROUPS:
        page = PAGES / f"{group}.md"
        found[page] = filled(page.read_text("utf-8"), group_pages.bodies(group))
    answers = json.loads(PEERS.read_text(encoding="utf-8"))
    found[accuracy_page.DATA] = accuracy_page.text(peer_errors(), answers)
    return found


def sampled() -> dict[Path, dict[str, str]]:
    """The documents that show what commands answer, and what stands between their marks."""
    return {
        README: samples.readme(),
        ROOT / "docs" / "check.md": samples.check(),
        ROOT / "docs" / "diagnose.md": samples.diagnose(),
        served.GUIDE: samples.serving(),
        faq.PAGE: faq.bodies(),
        deploy_samples.PAGE: deploy_samples.bodies(),
    }


def main(arguments: list[str]) -> int:
    """Write everything, or the samples alone."""
    if "--samples" in arguments:
        for path, bodies in sampled().items():
            path.write_text(filled(path.read_text("utf-8"), bodies), encoding="utf-8")
        return 0
    if "--trace" in arguments:
        scores.trace_all([word for word in arguments if word in GROUPS] or list(GROUPS))
    worse = scores.worse()
    if worse and "--worse" not in arguments:
        print("\n".join([*worse, "Nothing was written; --worse writes it anyway."]))
        return 1
    scores.store()
    for path, text in documents().items():
        path.write_text(text, encoding="utf-8")
    print("\n".join(group_pages.unexplained()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
