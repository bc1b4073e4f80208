"""What documents say of servers: public start-up logs against the estimate."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import samples
import served_releases
from msgspec import Struct

from gpu_mem_calculator.lab.backtest.rows import read_rows
from gpu_mem_calculator.lab.backtest.score import BacktestReport, RowScore, backtest, summary

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "tests" / "ground_truth"
PAGE, GUIDE = ROOT / "docs" / "accuracy" / "serving.md", ROOT / "docs" / "serving.md"
# a file of public logs, and how it was used
FILES = {
    "serving": "used in development from the start",
    "serving_vllm": "vLLM logs used in development",
    "serving_sglang": "SGLang logs used in development",
    "serving_tensorrt_llm": "TensorRT-LLM logs used in development",
    "serving_tgi": "TGI logs used in development",
    "serving_llamacpp": "llama.cpp logs used in development",
    "serving_unseen": "vLLM and SGLang logs found later; bugs they showed were then fixed",
    "serving_releases": "logs of many releases: scored once, then looked at",
    "serving_releases_last": "logs of many releases: left for the end",
}
ENGINES = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "tensorrt_llm": "TensorRT-LLM",
    "tgi": "TGI",
    "llamacpp": "llama.cpp",
}
METRICS = {
    "weights": "weights",
    "activation": "activations",
    "non_torch": "outside torch",
    "graph": "CUDA graphs",
    "kv_pool": "KV pool",
    "kv_tokens": "KV tokens",
}
MOST = 3.0  # percent: what is further off stands on the page by name


class First(Struct, frozen=True):
    """Mean and median error of serving_unseen.jsonl before anything was changed because of it."""

    logs: int
    errors: dict[str, tuple[str, str]]


FIRST = {
    "vllm": First(
        36,
        {
            "weights": ("0.21 %", "0.01 %"),
            "activation": ("45 %", "0.4 %"),
            "non_torch": ("44 %", "44 %"),
            "graph": ("39 %", "41 %"),
            "kv_pool": ("8.4 %", "1.3 %"),
            "kv_tokens": ("11.6 %", "1.3 %"),
        },
    ),
    "sglang": First(
        8,
        {
            "weights": ("2.9 %", "0.6 %"),
            "graph": ("112 %", "one log"),
            "kv_pool": ("4.0 %", "0.5 %"),
            "kv_tokens": ("8.2 %", "0.1 %"),
        },
    ),
}


@cache
def reports() -> dict[str, BacktestReport]:
    """Every file that there is, scored."""
    there = (name for name in FILES if (RUNS / f"{name}.jsonl").exists())
    return {name: backtest(read_rows(RUNS / f"{name}.jsonl")) for name in there}


def rows(engine: str | None = None, name: str | None = None) -> list[RowScore]:
    """The rows of an engine, of a file, of both or of all."""
    return [
        row
        for file, report in reports().items()
        if name in (None, file)
        for row in report.rows
        if engine in (None, row.group)
    ]


def errors(found: Iterable[RowScore], metric: str) -> list[float]:
    """The errors of a figure, in percent."""
    wanted = (row.metrics.get(metric) for row in found)
    return [one.error_pct for one in wanted if one is not None and one.error_pct is not None]


def _cell(found: Iterable[RowScore], metric: str) -> str:
    """Mean, and how many rows show it."""
    each = errors(found, metric)
    mean = summary(each).mean_abs_pct
    return "-" if mean is None else f"{mean:.2f} % ({len(each)})"


def _verdicts(found: Iterable[RowScore]) -> str:
    told = [row.metrics["fits"] for row in found if "fits" in row.metrics]
    return f"{sum(one.predicted == one.measured for one in told)} of {len(told)}" if told else "-"


def _table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    head = list(head)
    made = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in made)


def table() -> str:
    """Mean error of each figure by engine."""
    lines = []
    for engine, title in (*ENGINES.items(), (None, "all")):
        found = rows(engine)
        if found:
            cells = [_cell(found, metric) for metric in METRICS]
            lines.append([title, str(len(found)), *cells, _verdicts(found)])
    return _table(["", "logs", *METRICS.values(), "verdicts right"], lines)


def files() -> str:
    """The same by file."""
    lines = [
        [
            f"`{name}.jsonl`",
            FILES[name],
            str(len(rows(None, name))),
            *(_cell(rows(None, name), metric) for metric in METRICS),
        ]
        for name in reports()
    ]
    return _table(["", "", "logs", *METRICS.values()], lines)


def first() -> str:
    """The first score of the logs that were found later."""
    lines = [
        [
            f"{ENGINES[engine]}, {one.logs} logs",
            *(", ".join(one.errors[metric]) if metric in one.errors else "-" for metric in METRICS),
        ]
        for engine, one in FIRST.items()
    ]
    return _table(["mean, median", *METRICS.values()], lines)


def far() -> str:
    """Every figure that is further off than `MOST` percent."""
    lines = []
    for row in rows():
        for metric, title in METRICS.items():
            one = row.metrics.get(metric)
            if one is not None and one.error_pct is not None and abs(one.error_pct) > MOST:
                unit = 1 if metric == "kv_tokens" else 2**30
                digits = 0 if unit == 1 else 3
                lines.append(
                    [
                        row.id,
                        title,
                        f"{float(one.predicted) / unit:,.{digits}f}",
                        f"{float(one.measured) / unit:,.{digits}f}",
                        f"{one.error_pct:+.1f} %",
                    ]
                )
    return _table(["log", "figure", "predicted", "measured", "error"], lines)


def refused() -> str:
    """Rows that are not expressed, with why."""
    said = [f"- {one.id}: {one.why}" for report in reports().values() for one in report.refused]
    return "\n".join(said) or "None."


def bodies() -> dict[str, str]:
    """What stands between the marks of the documents on serving."""
    return {
        "servers": table(),
        "server-files": files(),
        "server-first": first(),
        "server-releases": _table(served_releases.HEAD, served_releases.lines()),
        "server-rows": far(),
        "refused": refused(),
        **samples.serving(),
    }
