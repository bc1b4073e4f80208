"""Compares measured speeds with the bound and the estimate: the tables of speed.md and of reports.

python docs/speed.py
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from msgspec import Struct

from gpu_mem_calculator.estimates.serving.speed import find_card_rates, serving_replica
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.serving import servers
from gpu_mem_calculator.timing.serving.measured import ALONE, PROMPTS, TOGETHER, ReachedShare
from gpu_mem_calculator.timing.serving.roofline import ServingReplica, prompts, requests
from gpu_mem_calculator.timing.serving.work import cache_bytes, step_work
from gpu_mem_calculator.tools.read import read

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "tests" / "ground_truth" / "speeds.jsonl"
PAGE = ROOT / "docs" / "speed.md"
SERVING = ROOT / "src" / "gpu_mem_calculator" / "timing" / "serving"
TABLE = SERVING / "measured.py"
LONG = 20  # tokens of prompt for each of the answer: such requests are prompts, and little else
REGIMES = {PROMPTS: "prompts", ALONE: "one sequence alone", TOGETHER: "several together"}
READ = (
    (0, 1e9, "under 1 GB"),
    (1e9, 4e9, "1 to 4 GB"),
    (4e9, 16e9, "4 to 16 GB"),
    (16e9, 1e15, "16 GB or more"),
)
Row = dict[str, Any]


class Compared(Struct, frozen=True):
    """A figure, the bound for it, and what a step of one sequence reads on one card."""

    row: Row
    bound: float
    step_bytes: float

    @property
    def engine(self) -> str:
        """Who was measured."""
        return str(self.row["config"]["inference"]["engine"])

    @property
    def format(self) -> str:
        """Of the weights."""
        return str(self.row["config"]["inference"].get("quantization") or "none")

    @property
    def share(self) -> float:
        """What it is of the bound."""
        return float(self.row["tokens_per_second"]) / self.bound

    @property
    def regime(self) -> str:
        """What it is a figure of."""
        row = self.row
        if row["what"] == "prefill" or (
            row["what"] != "decode" and row["prompt"] >= LONG * row["new"]
        ):
            return PROMPTS
        return ALONE if row["batch"] == 1 else TOGETHER


def rows() -> tuple[Row, ...]:
    """Every figure of the file; `left_out` says why one is not believed."""
    return tuple(map(json.loads, ROWS.read_text("utf-8").splitlines()))


def compare(row: Row) -> Compared:
    """A figure against what its cards could reach, counted as the figure counts tokens."""
    file = read(row["config"]).file
    resolved = resolve(file)
    card = find_card_rates(file.hardware, int(resolved.run.mesh.tp))
    assert card is not None
    serving = serving_replica(resolved, card)
    read_bytes = step_work(serving.stages[0], row["prompt"] + row["new"] // 2, 1).read_bytes
    copies, batch = int(resolved.run.mesh.dp), float(row["batch"])
    if batch < copies:
        serving, copies = serving.alone, 1
    each = batch / copies  # a replica's part
    if row["what"] == "full load":
        each = min(each, room(serving, resolved.run.card_bytes, row["prompt"] + row["new"] // 2))
    return Compared(row, copies * rate(serving, row, each), read_bytes)


def rate(serving: ServingReplica, row: Row, sequences: float) -> float:
    """Tokens a second of one replica at most."""
    prompt, new = row["prompt"], row["new"]
    if row["what"] == "prefill":
        return sequences * prompt / prompts(serving, prompt, sequences).seconds
    found = requests(serving, prompt, new, sequences, prompted=row["what"] == "decode")
    tokens = new + (prompt if row["counted"] == "both" else 0)
    return float(sequences * tokens / found.seconds)


def room(serving: ServingReplica, card_bytes: int, context: int) -> float:
    """Sequences that there could be if all memory beside the weights were cache."""
    return min(
        max(
            1.0,
            (card_bytes - sum(part.bytes for part in stage.parts))
            / max(1.0, cache_bytes(stage, context)),
        )
        for stage in serving.stages
    )


@cache
def compared() -> tuple[Compared, ...]:
    """Every figure that is believed."""
    return tuple(compare(row) for row in rows() if "left_out" not in row)


@cache
def left_out() -> tuple[Compared, ...]:
    """Those that are not."""
    return tuple(compare(row) for row in rows() if "left_out" in row)


def share_of(found: Iterable[Compared]) -> ReachedShare | None:
    """Median, least and most, in whole percents."""
    values = sorted(one.share for one in found)
    if not values:
        return None
    return ReachedShare(
        *(round(v, 2) for v in (median(values), values[0], values[-1])), len(values)
    )


def shares() -> dict[str, dict[str, ReachedShare]]:
    """By engine and regime."""
    found = {
        engine.name: {
            regime: share_of(
                one for one in compared() if one.engine == engine.name and one.regime == regime
            )
            for regime in REGIMES
        }
        for engine in servers().values()
    }
    return {
        name: {regime: share for regime, share in regimes.items() if share}
        for name, regimes in found.items()
        if any(regimes.values())
    }


def said(share: ReachedShare | None) -> str:
    """A cell: the median, the range and how many."""
    if share is None:
        return "-"
    return (
        f"{100 * share.median:.0f} % ({100 * share.least:.0f} to {100 * share.most:.0f} %, "
        f"{share.count})"
    )


def engine_table() -> Iterator[str]:
    """Engines down, regimes across."""
    titles = {engine.name: engine.title for engine in servers().values()}
    yield f"| | {' | '.join(REGIMES.values())} |"
    yield "|---" * (1 + len(REGIMES)) + "|"
    for name, found in shares().items():
        yield f"| {titles[name]} | {' | '.join(said(found.get(r)) for r in REGIMES)} |"


def read_table() -> Iterator[str]:
    """One sequence alone, by what a step reads on each card."""
    yield (
        "| a step reads on each card | "
        + " | ".join(("servers", "llama.cpp", "transformers"))
        + " |"
    )
    yield "|---|---|---|---|"
    kinds: tuple[Callable[[str], bool], ...] = (
        lambda name: name not in ("llamacpp", "transformers"),
        lambda name: name == "llamacpp",
        lambda name: name == "transformers",
    )
    alone = [one for one in compared() if one.regime == ALONE]
    for least, most, title in READ:
        here = [one for one in alone if least <= one.step_bytes < most]
        cells = (said(share_of(one for one in here if kind(one.engine))) for kind in kinds)
        yield f"| {title} | {' | '.join(cells)} |"


def unit_table() -> Iterator[str]:
    """Prompts and full batches, by the unit that products run on."""
    yield "| weights | " + " | ".join(REGIMES.values()) + " |"
    yield "|---|---|---|---|"
    kinds = {
        "16 bits": ("none",),
        "8 bits, products in 8 bits": ("fp8", "int8"),
        "4 bits, products in 4 or 8 bits": ("nvfp4", "mxfp4"),
        "4 or 8 bits, products in 16 bits": ("awq", "gptq_int4", "gptq_int8"),
    }
    for title, names in kinds.items():
        here = [one for one in compared() if one.engine != "llamacpp" and one.format in names]
        cells = (said(share_of(one for one in here if one.regime == r)) for r in REGIMES)
        yield f"| {title} | {' | '.join(cells)} |"


def source_table() -> Iterator[str]:
    """Where the figures are from, and how many."""
    yield "| source | engines | figures |"
    yield "|---|---|---|"
    titles = {engine.name: engine.title for engine in servers().values()}
    groups: dict[str, list[Compared]] = {}
    for one in compared():
        groups.setdefault(str(one.row["source"]), []).append(one)
    for source, found in groups.items():
        names = ", ".join(dict.fromkeys(titles[one.engine] for one in found))
        yield f"| {source} | {names} | {len(found)} |"


def left_out_table() -> Iterator[str]:
    """Figures that cards cannot reach, and why."""
    yield "| figure | tokens/s | bound | why it is left out |"
    yield "|---|---|---|---|"
    titles = {engine.name: engine.title for engine in servers().values()}
    for one in left_out():
        config, row = one.row["config"], one.row
        what = (
            f"{titles[one.engine]}, {config['model']['name']} on "
            f"{config['hardware'].get('num_gpus', 1)} × {config['hardware']['gpu']}, "
            f"{row['batch']} × ({row['prompt']} + {row['new']})"
        )
        yield (
            f"| {what} | {row['tokens_per_second']:,.0f} | {one.bound:,.0f} | "
            f"{row['left_out']}: {row['source']} |"
        )


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "engines": engine_table,
    "read": read_table,
    "units": unit_table,
    "sources": source_table,
    "left-out": left_out_table,
    "count": lambda: iter([f"{len(compared())} figures."]),
    "estimate": lambda: estimate_tables().score_table(),
    "costs": lambda: estimate_tables().costs_table(),
}


def estimate_tables() -> Any:
    """docs/speed_tables.py, which reads the figures of this file."""
    sys.path.insert(0, str(ROOT / "docs"))
    return importlib.import_module("speed_tables")


def page(names: Iterable[str] = ()) -> str:
    """speed.md with its tables written anew; some of them where they are named."""
    text = PAGE.read_text("utf-8")
    for name in names or TABLES:
        block = f"<!-- {name} -->\n" + "\n".join(TABLES[name]()) + "\n<!-- end -->"
        text = re.sub(
            rf"<!-- {name} -->\n.*?<!-- end -->", lambda _, b=block: b, text, flags=re.DOTALL
        )
    return text


def module() -> str:
    """measured.py with its shares written anew."""
    words = {PROMPTS: "PROMPTS", ALONE: "ALONE", TOGETHER: "TOGETHER"}
    lines = []
    for name, found in shares().items():
        rows = [
            f"{words[regime]}: ReachedShare({s.median}, {s.least}, {s.most}, {s.count})"
            for regime, s in found.items()
        ]
        if len(rows) == 1:
            lines.append(f'    "{name}": {{{rows[0]}}},')
            continue
        lines += [f'    "{name}": {{', *(f"        {row}," for row in rows), "    },"]
    table = "\n".join(["SHARES: Mapping[str, Mapping[str, ReachedShare]] = {", *lines, "}"])
    text = TABLE.read_text("utf-8")
    return re.sub(r"SHARES: .*?\n}", lambda _: table, text, flags=re.DOTALL)


if __name__ == "__main__":
    TABLE.write_text(module(), "utf-8")
    TABLE.write_text(estimate_tables().module(TABLE.read_text("utf-8")), "utf-8")
    PAGE.write_text(page(), "utf-8")
