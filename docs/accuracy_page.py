"""The data of the page /accuracy: every figure, every run, and the other calculators, as JSON.

Runs are grouped by file and group, as lists in the order of `columns`. Text that repeats is stored
once, in `phrases`. A figure is `[measured, predicted - measured]` in the units of its metric
(512 bytes, tokens, 1 for a server that started), 0 where there is none. `phases` has the list of
names, the measured peaks in MiB, and the errors in MiB that are not zero.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import first_scores
import group_pages
import scores
import served

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.lab.backtest.score import Comparison, Refusal, RowScore, summary
from gpu_mem_calculator.report.headline import headline, setup_words

DATA = scores.ROOT / "src" / "gpu_mem_calculator" / "web" / "static" / "accuracy.json"
COMPARED = "runs"  # the file that the other calculators were asked about, and their metric
UNSEEN = ("unseen", "kept", "serving_unseen")  # scored before anything was changed for them
COLUMNS = ("id", "words", "environment", "figures", "phases", "trace", "reasons")
UNITS = {"kv_tokens": 1, "fits": 1}
MIB, BLOCK = 2**20, 512  # torch gives memory out in blocks of 512 bytes
SAYS = {
    "allocated": "torch's max_memory_allocated over the steps",
    "startup": "the same before the first step",
    "reserved": "what torch's allocator reserved on the card",
    "needs": "the least memory that the run survived in, bisected on the card",
    "device": "what nvidia-smi showed for the process",
    "host": "the process's resident memory on the host",
    "weights": "what the log says the model takes",
    "activation": "the peak of the profiling pass",
    "non_torch": "memory outside torch",
    "graph": "what capturing CUDA graphs took",
    "kv_pool": "the memory of the KV cache",
    "kv_tokens": "how many tokens the KV cache holds",
    "fits": "whether the server started",
}
KINDS: dict[str, tuple[Mapping[str, str], Mapping[str, str]]] = {
    "training": (scores.METRICS, scores.GROUPS),
    "serving": ({**served.METRICS, "fits": "verdict"}, served.ENGINES),
}
RANKS = {"fake": "other ranks faked", "nccl": "NCCL", "nccl, 1 rank": "NCCL with one rank"}

Errors = Mapping[str, Mapping[str, list[float]]]


class Phrases(dict[str, int]):
    """Texts, each once, and the number that stands for it."""

    def __missing__(self, text: str) -> int:
        self[text] = len(self)
        return self[text]


def text(errors: Errors, answers: Mapping[str, Mapping[str, float]]) -> str:
    """The file: a line for each run, so that a change can be read."""
    made = data(errors, answers)
    runs = made.pop("runs")
    lines = [f"{_json(key)}:{_json(value)}" for key, value in made.items()]
    for place, rows in runs.items():
        lines.append(f"{_json(place)}:[\n" + ",\n".join(map(_json, rows)) + "\n]")
    head, rest = lines[: len(made)], lines[len(made) :]
    return "{" + ",\n".join(head) + ',\n"runs":{' + ",\n".join(rest) + "}}\n"


def data(errors: Errors, answers: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Everything that the page shows."""
    phrases, phases = Phrases(), Phrases()
    runs: dict[str, list[Any]] = {}
    for name, row in _every():
        runs.setdefault(f"{name}/{row.group}", []).append(_row(name, row, phrases, phases))
    stored = scores.stored()
    return {
        "date": stored["date"],
        "version": stored["version"],
        "card": "NVIDIA H200",
        "libraries": scores.versions(),
        "kinds": {kind: _kind(kind) for kind in KINDS},
        "files": list(_files()),
        "peers": _peers(errors, answers),
        "refused": [[one.id, one.why] for one in _refused()],
        "columns": COLUMNS,
        "phrases": list(phrases),
        "phases": [names.split() for names in phases],
        "runs": runs,
    }


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _every() -> Iterator[tuple[str, RowScore]]:
    """(file, run) of every measured run, then of every server's log."""
    yield from scores.rows()
    for name in served.reports():
        yield from ((name, row) for row in served.rows(None, name))


def _refused() -> Iterator[Refusal]:
    reports = [*map(scores.report, scores.FILES), *served.reports().values()]
    return (one for report in reports for one in report.refused)


def _kind(kind: str) -> dict[str, Any]:
    """The metrics of a kind of run and its groups, with their errors."""
    metrics, groups = KINDS[kind]
    rows = [row for _, row in _every() if row.group in groups]
    return {
        "runs": len(rows),
        "groups": {
            group: {
                "title": title,
                "runs": sum(row.group == group for row in rows),
                "says": _still_off(group),
            }
            for group, title in groups.items()
        },
        "metrics": {
            metric: {
                "title": title,
                "says": SAYS[metric],
                "unit": UNITS.get(metric, BLOCK),
                **_by_group(rows, metric),
            }
            for metric, title in metrics.items()
        },
    }


def _by_group(rows: list[RowScore], metric: str) -> dict[str, Any]:
    groups = dict.fromkeys(row.group for row in rows)
    found = {
        group: _figures([row for row in rows if row.group == group], metric) for group in groups
    }
    return {
        "overall": _figures(rows, metric),
        "groups": {group: made for group, made in found.items() if made["n"]},
    }


def _figures(rows: list[RowScore], metric: str) -> dict[str, Any]:
    """Number, mean, median and worst, which has its sign; of a verdict, how many are right."""
    found = [row.metrics[metric] for row in rows if metric in row.metrics]
    if metric == "fits":
        return {"n": len(found), "right": sum(one.predicted == one.measured for one in found)}
    return summed([one.error_pct for one in found if one.error_pct is not None])


def summed(errors: list[float]) -> dict[str, Any]:
    """Number, mean, median and worst of errors in percent."""
    made = summary(errors)
    if not made.n:
        return {"n": 0}
    sizes = {
        "mean": made.mean_abs_pct,
        "median": made.median_abs_pct,
        "worst": max(errors, key=abs),
    }
    return {"n": made.n, **{key: round(size or 0.0, 4) for key, size in sizes.items()}}


def _still_off(group: str) -> str:
    """The known errors of a group, as one paragraph."""
    page = scores.ROOT / "docs" / "accuracy" / f"{group}.md"
    found = page.exists() and re.search(
        r"^## Known errors\n(.*?)^## ", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    return " ".join(found.group(1).replace("`", "").split()) if found else ""


def _files() -> Iterator[dict[str, Any]]:
    """Every file of measured runs: what it is, how it was used, and how close it is now."""
    known = {
        **{
            name: (title, use + first_scores.said(name))
            for name, (title, use) in scores.FILES.items()
        },
        **{name: (title, "") for name, title in served.FILES.items()},
    }
    known["serving_unseen"] = (served.FILES["serving_unseen"], _first_served())
    for name, (title, use) in known.items():
        rows = [row for file, row in _every() if file == name]
        main = "allocated" if name in scores.FILES else "kv_pool"
        yield {
            "name": name,
            "title": title,
            "use": use,
            "runs": len(rows),
            "unseen": name in UNSEEN,
            "metric": main,
            **_figures(rows, main),
        }


def _first_served() -> str:
    """The first score of the logs that were found later, in a sentence."""
    found = [
        f"{served.ENGINES[engine]}, {one.logs} logs: "
        + ", ".join(f"{served.METRICS[metric]} {mean}" for metric, (mean, _) in one.errors.items())
        for engine, one in served.FIRST.items()
    ]
    return f"Mean errors of the first score: {'; '.join(found)}."


def _peers(errors: Errors, answers: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Every calculator on the same runs, by group, and what each said of each run, in GiB."""
    groups = scores.report(COMPARED).groups
    order = [row.id for group in groups for _, row in scores.rows(group, (COMPARED,))]
    tools = []
    for tool, by_group in errors.items():
        every = [error for found in by_group.values() for error in found]
        said = answers.get(tool, {})
        tools.append(
            {
                "name": tool,
                "overall": summed(every),
                "groups": {
                    group: summed(by_group[group]) for group in scores.GROUPS if group in by_group
                },
                "answers": [round(said[run], 3) if run in said else None for run in order]
                if said
                else [],
            }
        )
    tools.sort(key=lambda one: one["overall"]["mean"])
    return {"file": COMPARED, "metric": "allocated", "tools": tools}


def _row(name: str, row: RowScore, phrases: Phrases, phases: Phrases) -> list[Any]:
    """One run, in the order of `COLUMNS`."""
    raw = _raw(name)[row.id]
    metrics = KINDS["training" if row.group in scores.GROUPS else "serving"][0]
    trace = scores.traced().get(row.id, {})
    made = [
        row.id,
        [phrases[word] for word in _words(raw)],
        phrases[_environment(raw)],
        [figure(metric, row.metrics.get(metric)) for metric in metrics],
        _phases(row, phases),
        [_short(trace[metric], 3) for metric in scores.TRACE_METRICS if metric in trace],
        {what: phrases[why] for what, why in _reasons(row)},
    ]
    while not made[-1]:
        made.pop()
    return made


def figure(metric: str, one: Comparison | None) -> list[float] | int:
    """What was measured, and by how much the prediction is off."""
    if one is None:
        return 0
    unit = UNITS.get(metric, BLOCK)
    return [_short(one.measured / unit, 1), _short((one.predicted - one.measured) / unit, 1)]


def _short(value: float, digits: int) -> float:
    """A few decimals, and none where they are noughts."""
    value = round(value, digits)
    return int(value) if value == int(value) else value


def _phases(row: RowScore, phases: Phrases) -> list[Any] | int:
    if not row.phases:
        return 0
    apart = [round((one.predicted - one.measured) / MIB) for one in row.phases.values()]
    return [
        phases[" ".join(row.phases)],
        [round(one.measured / MIB) for one in row.phases.values()],
        {index: size for index, size in enumerate(apart) if size},
    ]


def _reasons(row: RowScore) -> Iterator[tuple[str, str]]:
    """Each figure and phase of a run that documents list as off, and why."""
    for one in _off(row.group):
        if one.run == row.id:
            yield one.what, one.why


@cache
def _off(group: str) -> list[group_pages.Off]:
    return list(group_pages.off(group)) if group in scores.GROUPS else []


@cache
def _raw(name: str) -> dict[str, Any]:
    """The lines of a file, by run."""
    lines = (scores.RUNS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return {one["id"]: one for one in map(json.loads, lines)}


def _words(raw: Mapping[str, Any]) -> Iterator[str]:
    """The set-up as the head of a report has it, cut into what other runs say, too."""
    estimate = full_estimate(raw["config"], replay=False)
    title, (engine, *rest) = estimate.resolved.model.title, setup_words(estimate)
    said = " ".join("".join(part for part, _ in line).strip() for line in headline(estimate))
    model = said.removeprefix(title[:40]).removesuffix(", ".join([engine, *rest]))
    family = raw["config"]["model"].get("config", {}).get("model_type", title)
    yield family if title == "custom model" else title
    yield from model.strip().split(", ")
    name, _, cards = engine.partition(" on ")
    yield from (name, f"on {cards}", *rest)


def _environment(raw: Mapping[str, Any]) -> str:
    """Where it was measured, or where the log stands."""
    around = raw.get("environment") or {}
    libraries = (
        f"{library} {str(around[key]).partition('+')[0]}"
        for library, keys in scores.LIBRARIES.items()
        for key in keys
        if key in around
    )
    ranks = RANKS.get(around.get("process_group", ""))
    source = around.get("source") or raw.get("source")
    return ", ".join(filter(None, [around.get("gpu"), *libraries, ranks, source]))
