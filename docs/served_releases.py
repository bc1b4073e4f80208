"""Start-up logs of many releases: what the release is worth, then and now."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, median

from msgspec import Struct
from msgspec.structs import replace

from gpu_mem_calculator.lab.backtest.rows import MeasuredRun, read_rows
from gpu_mem_calculator.lab.backtest.score import RowScore, backtest

RUNS = Path(__file__).parents[1] / "tests" / "ground_truth"
HEAD = ["half", "logs", "release", "first score: mean, median, worst", "today: mean, median, worst"]
ONLY_OLD = ("engine_version", "swap_space")  # the newest release does not know the second


class Half(Struct, frozen=True):
    """A file's logs of one engine, with the score that was taken once: with the release, without.

    The first half was scored before anything was changed for it; the second at the end.
    """

    title: str
    file: str
    engine: str
    told: str
    left_out: str


HALVES = (
    Half(
        "first, vLLM",
        "serving_releases",
        "vllm",
        "2.63 %, 0.69 %, +25.3 %",
        "9.73 %, 4.67 %, +50.1 % (two refused)",
    ),
    Half(
        "first, SGLang",
        "serving_releases",
        "sglang",
        "0.02 %, 0.02 %, 0.0 %",
        "3.21 %, 0.13 %, -9.5 %",
    ),
    Half(
        "second, vLLM",
        "serving_releases_last",
        "vllm",
        "3.04 %, 0.76 %, -36.3 %",
        "6.96 %, 4.30 %, +56.4 %",
    ),
    Half(
        "second, SGLang",
        "serving_releases_last",
        "sglang",
        "0.23 %, 0.24 %, -0.4 %",
        "5.31 %, 0.24 %, -15.7 %",
    ),
)


def lines() -> list[list[str]]:
    """Each half, with its release and without."""
    return [line for half in HALVES for line in _half(half)]


def _half(half: Half) -> list[list[str]]:
    rows = [row for row in read_rows(RUNS / f"{half.file}.jsonl") if row.group == half.engine]
    newest = [_without_release(row) for row in rows]
    number = str(len(rows))
    return [
        [half.title, number, "as in the log", half.told, _pools(rows)],
        [half.title, number, "left out", half.left_out, _pools(newest)],
    ]


def _without_release(row: MeasuredRun) -> MeasuredRun:
    inference = {k: v for k, v in row.config["inference"].items() if k not in ONLY_OLD}
    return replace(row, config={**row.config, "inference": inference})


def _pools(rows: list[MeasuredRun]) -> str:
    """Errors of the pool, or of its tokens where the log has no bytes of it."""
    errors = [found for row in backtest(rows).rows if (found := _pool(row)) is not None]
    sizes = [abs(error) for error in errors]
    return f"{mean(sizes):.2f} %, {median(sizes):.2f} %, {max(errors, key=abs):+.1f} %"


def _pool(row: RowScore) -> float | None:
    metric = row.metrics.get("kv_pool") or row.metrics.get("kv_tokens")
    return metric.error_pct if metric else None
