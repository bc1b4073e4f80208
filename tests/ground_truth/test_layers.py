"""Which layers are on the GPU: 62 public start-up logs of llama.cpp and Ollama, each predicted from
its model, its options and the free memory that it printed.

`seen` logs were looked at while the rules were written, the others were committed before. The 22 of
`layers_2.jsonl` were drawn later: the first prediction was exact in 12.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.ledger.units import MIB
from gpu_mem_calculator.run.run import Run
from gpu_mem_calculator.runfile.resolve.resolve_inference import resolve_inference
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.serving.llamacpp.engine import placed_layout, process_bytes
from gpu_mem_calculator.serving.llamacpp.fit import used_bytes
from gpu_mem_calculator.serving.llamacpp.layout import device_bytes
from gpu_mem_calculator.serving.llamacpp.ollama import placement
from gpu_mem_calculator.serving.llamacpp.options import ollama_rule, server_layout
from gpu_mem_calculator.tools.read import read

HERE = Path(__file__).parent
FIRST, SECOND = (
    [json.loads(line) for line in (HERE / name).read_text().splitlines()]
    for name in ("layers.jsonl", "layers_2.jsonl")
)
ROWS = [*FIRST, *SECOND]
Pair = tuple[str, float, float]  # a figure: its name, as logged, as predicted


def run_of(row: dict[str, Any]) -> Run:
    """The run of a log; what a log of --fit says is free is without the process's own memory."""
    data = {key: dict(row["run"][key]) for key in ("model", "inference", "hardware")}
    name, release = row["release"].split() if " " in row["release"] else ("", row["release"])
    data["inference"]["ollama_version" if name else "engine_version"] = release
    run = resolve_inference(read(data).file).run
    free = row["run"].get("free_mib")
    if free is None:
        return run
    own = 0 if name else process_bytes(run)
    return replace(run, free_bytes=int(min(free) * MIB) + own)


@cache
def figures(place: int) -> tuple[tuple[str, float, float], ...]:
    """Figures of a log, as it has them and as they are predicted."""
    row = ROWS[place]
    run, found = run_of(row), []
    layout, logged = placed_layout(run), row["measured"]
    devices = device_bytes(layout)
    gpus = devices[:-1]
    if "layers" in logged:
        places = (*layout.devices.layers, layout.devices.output)
        found.append(("layers", logged["layers"][0], sum(one != layout.gpus for one in places)))
    for name, sizes in (
        ("weights", [one.weights for one in gpus]),
        ("kv", [one.cache for one in gpus]),
        ("compute", [one.compute for one in gpus]),
    ):
        found += [(name, *pair) for pair in zip(logged.get(name, ()), _mib(sizes), strict=False)]
    if "host_weights" in logged:
        found.append(("host_weights", logged["host_weights"], devices[-1].weights / MIB))
    if "projected" in logged:
        found.append(("projected", logged["projected"], sum(used_bytes(server_layout(run))) / MIB))
    if "used" in logged:
        found.append(("used", logged["used"], sum(used_bytes(layout)) / MIB))
    if "rule" in logged:
        found += _rule_figures(layout, run, logged["rule"])
    if "context" in logged:
        found.append(("context", logged["context"], layout.context))
    return tuple(found)


def _rule_figures(layout: Any, run: Run, logged: dict[str, float]) -> list[Pair]:
    """What Ollama printed of its estimate."""
    rule = ollama_rule(run)
    assert rule is not None
    made = placement(server_layout(run), rule)
    found = {"kv": sum(made.cache), "graph_full": made.full, "graph_partial": made.partial}
    found |= {"full": made.all_needs, "partial": made.needs, "nonrepeating": made.output}
    return [
        (f"rule {key}", logged[key], size / MIB) for key, size in found.items() if key in logged
    ]


def _mib(sizes: list[int]) -> list[float]:
    return [size / MIB for size in sizes]


SEEN = [place for place, row in enumerate(ROWS) if row["seen"]]
UNSEEN = [place for place, row in enumerate(ROWS) if not row["seen"]]
NOT_MODELLED = {  # what a log has that its run is refused for
    "ollama-qwen3-coder-next-24g": "modelled from b9180 on",
    "llamacpp-qwen36-27b-3090": "modelled from b9180 on",
    "ollama-qwen35-122b-95g": "modelled from b9180 on",
    "ollama-gemma4-26b-3090": "not modelled",
    "ollama-mixtral-8x7b-23-layers": "is not a build",
}
LAYERS = {  # of all, and of those that no rule was written with: at least so many are exact
    "seen": (4, 6),
    "unseen": (46, 53),
}
WITHIN = 0.94  # of the buffers at least, within 2 % and the rounding of a log


def close(logged: float, found: float) -> bool:
    """Whether a buffer is within 2 %; logs have MiB to a hundredth, or GiB to a tenth."""
    rounded = 51.2 if logged >= 1024 and abs(logged * 10 / 1024 % 1) < 1e-6 else 0.55
    return abs(found - logged) <= 0.02 * logged + rounded


def pairs(places: list[int]) -> list[tuple[str, Pair]]:
    """Every figure of the logs that are expressed, with the log's name."""
    return [
        (ROWS[place]["id"], pair)
        for place in places
        if ROWS[place]["id"] not in NOT_MODELLED
        for pair in figures(place)
        if pair[0] != "compute" or not any("Vulkan" in line for line in ROWS[place]["lines"])
    ]


@pytest.mark.parametrize(("part", "places"), [("seen", SEEN), ("unseen", UNSEEN)])
def test_layers_on_the_gpu(part: str, places: list[int]) -> None:
    """How many logs have exactly the layers that are predicted, of all that say it."""
    said = sum("layers" in ROWS[place]["measured"] for place in places)
    exact = [pair for _, pair in pairs(places) if pair[0] == "layers" and pair[1] == pair[2]]
    assert (len(exact), said) >= LAYERS[part]


def test_buffers() -> None:
    """Model, cache and compute buffers of each device, and what Ollama printed of its estimate."""
    found = [(name, pair) for name, pair in pairs(UNSEEN) if pair[0] not in ("layers", "context")]
    far = [(name, *pair) for name, pair in found if not close(pair[1], pair[2])]
    assert len(far) <= (1 - WITHIN) * len(found), far


@pytest.mark.parametrize("name", NOT_MODELLED)
def test_what_is_not_modelled_is_named(name: str) -> None:
    """The run of such a log is refused with the reason."""
    row = next(row for row in ROWS if row["id"] == name)
    with pytest.raises(InputError, match=NOT_MODELLED[name]):
        run_of(row)
