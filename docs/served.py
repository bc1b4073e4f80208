"""What documents say of servers: public start-up logs against the estimate."""

from __future__ import annotations

import io
import shlex
from collections.abc import Iterable
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

from gpu_mem_calculator.backtest.rows import read_rows
from gpu_mem_calculator.backtest.score import BacktestReport, RowScore, backtest, summary
from gpu_mem_calculator.cli.main import main as command

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "tests" / "ground_truth"
PAGE, GUIDE = ROOT / "docs" / "accuracy" / "serving.md", ROOT / "docs" / "serving.md"
SAMPLE = "infer llama3.1-8b --gpu h100-80gb-sxm --max-model-len 16384"
LARGE = "infer deepseek-v3 --gpu h200 --tp 8 --max-model-len 32768"
# a file of public logs, and how it was used
FILES = {
    "serving": "looked at from the start",
    "serving_vllm": "vLLM logs found on the way",
    "serving_sglang": "SGLang logs found on the way",
    "serving_tensorrt_llm": "TensorRT-LLM logs found on the way",
    "serving_tgi": "TGI logs found on the way",
    "serving_llamacpp": "llama.cpp logs found on the way",
    "serving_unseen": "vLLM and SGLang logs found later, then looked at, too",
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
    "non_torch": "beside torch",
    "graph": "CUDA graphs",
    "kv_pool": "KV pool",
    "kv_tokens": "KV tokens",
}
MOST = 3.0  # percent: what is further off stands on the page by name


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


def _errors(found: Iterable[RowScore], metric: str) -> list[float]:
    wanted = (row.metrics.get(metric) for row in found)
    return [one.error_pct for one in wanted if one is not None and one.error_pct is not None]


def _cell(found: Iterable[RowScore], metric: str) -> str:
    """Mean, and how many rows show it."""
    errors = _errors(found, metric)
    mean = summary(errors).mean_abs_pct
    return "-" if mean is None else f"{mean:.2f} % ({len(errors)})"


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


def sample(words: str = SAMPLE) -> str:
    """A command and what it prints."""
    out = io.StringIO()
    with redirect_stdout(out):
        command(shlex.split(words))
    return f"```console\n$ gpu-mem-calc {words}\n{out.getvalue().rstrip()}\n```"


def bodies() -> dict[str, str]:
    """What stands between the marks of the documents on serving."""
    return {
        "servers": table(),
        "server-files": files(),
        "server-rows": far(),
        "refused": refused(),
        "infer": sample(),
        "infer-large": sample(LARGE),
    }
