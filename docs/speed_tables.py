"""The tables of the estimate: scores and constants for speed.md, and the module that has them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import speed
from speed_estimate import Figure, all_costs, by_share, inside, intervals, left_out_ratios, quantile

from gpu_mem_calculator.serving import servers
from gpu_mem_calculator.timing.serving.measured import ALONE, PROMPTS, TOGETHER, V0, EngineCosts


def score_table() -> Iterator[str]:
    """Errors of both by engine and kind, with constants from other sources."""
    titles = {engine.name: engine.title for engine in servers().values()}
    yield (
        "| engine | figures of | n | bound × share: median, p90 | estimate: median, p90 | "
        "inside the interval |"
    )
    yield "|---|---|---|---|---|---|"
    groups: dict[tuple[str, str], list[tuple[Figure, float]]] = {}
    for one, ratio in left_out_ratios():
        key = titles[one.compared.engine], speed.REGIMES[one.compared.regime]
        groups.setdefault(key, []).append((one, ratio))
    for (title, kind), found in sorted(groups.items()):
        yield _score_row(title, kind, found)
    yield _score_row("**all**", "", list(left_out_ratios()))


def _score_row(title: str, kind: str, found: list[tuple[Figure, float]]) -> str:
    before = [abs(by_share(one) - 1) for one, _ in found]
    after = [abs(ratio - 1) for _, ratio in found]
    cells = [
        ", ".join(f"{100 * quantile(values, part):.0f} %" for part in (0.5, 0.9))
        for values in (before, after)
    ]
    within = f"{100 * inside(found):.0f} %"
    return f"| {title} | {kind} | {len(found)} | {cells[0]} | {cells[1]} | {within} |"


def costs_table() -> Iterator[str]:
    """What engines add, from all sources."""
    titles = {engine.name: engine.title for engine in servers().values()}
    costs, share = all_costs()
    yield "| engine | ms of a pass | µs of a sequence and step | ms of a prompt | other |"
    yield "|---|---|---|---|---|"
    for name, one in costs.items():
        title = "vLLM, V0 engine" if name == V0 else titles[name]
        layer = f"host: {1e3 * one.layer:g} ms of a layer" if one.layer else ""
        own = f"prompts at {one.prompt_share:g} of the curves" if one.prompt_share != 1 else ""
        cells = f"{1e3 * one.step:g} | {1e6 * one.sequence:g} | {1e3 * one.request:g}"
        yield f"| {title} | {cells} | {layer or own or '-'} |"
    yield f"| cards of AMD | - | - | - | kernels at {share:g} of the scaled curves |"


def module(text: str) -> str:
    """measured.py with its costs written anew."""
    costs, share = all_costs()
    names = {name: "V0" if name == V0 else f'"{name}"' for name in costs}
    rows = [f"    {names[name]}: {_written(one)}," for name, one in costs.items()]
    table = "\n".join(["COSTS: Mapping[str, EngineCosts] = {", *rows, "}"])
    words = {PROMPTS: "PROMPTS", ALONE: "ALONE", TOGETHER: "TOGETHER"}
    found = intervals(left_out_ratios())
    lines = [f"    {words[k]}: SecondsInterval({i.low}, {i.high})," for k, i in found.items()]
    spread = "\n".join(["INTERVALS: Mapping[str, SecondsInterval] = {", *lines, "}"])
    text = re.sub(r"COSTS: .*?\n}", lambda _: table, text, flags=re.DOTALL)
    text = re.sub(r"AMD_SHARE = [\d.]+", f"AMD_SHARE = {share}", text)
    return re.sub(r"INTERVALS: .*?\n}", lambda _: spread, text, flags=re.DOTALL)


def _written(costs: EngineCosts) -> str:
    default: Any = EngineCosts()
    fields = ((name, getattr(costs, name)) for name in costs.__struct_fields__)
    given = [f"{n}={v:.6f}".rstrip("0") for n, v in fields if v != getattr(default, n)]
    return f"EngineCosts({', '.join(given)})"
