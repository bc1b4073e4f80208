"""Measured runs to calibrate trials with: the calculator has seen them, the drawn cases are new."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

from gpu_mem_calculator.lab.backtest.rows import read_rows
from gpu_mem_calculator.lab.measure.program import program
from gpu_mem_calculator.runfile.text.errors import InputError

from .draw import LEAST, MOST, SEED

GROUND_TRUTH = Path(__file__).parent.parent / "ground_truth"
FILES = (
    *("runs", "engines", "families", "options", "random", "unseen", "kept"),
    "serving_transformers",
)
EACH = 10  # runs of a group; those whose least memory was bisected come first


def seen_runs(seed: int = SEED) -> list[dict[str, Any]]:
    """Up to `EACH` runs of each group that `measure` can run, as file and id."""
    found: dict[str, list[tuple[bool, str, str]]] = defaultdict(list)
    for name in FILES:
        for row in read_rows(GROUND_TRUTH / f"{name}.jsonl"):
            peak = row.measured.get("allocated_bytes", 0)
            if LEAST <= peak <= MOST and not row.failed and _runs(row.config):
                bisected = "survives_in_bytes" in row.measured
                found[trial_group(row.config)].append((bisected, name, row.id))
    chosen = []
    for group, runs in sorted(found.items()):
        Random(f"{seed}/{group}").shuffle(runs)
        runs.sort(key=lambda run: not run[0])
        rows = [{"id": one, "file": f"{name}.jsonl"} for _, name, one in runs[:EACH]]
        chosen += [{**row, "group": group} for row in rows]
    return chosen


def _runs(config: dict[str, Any]) -> bool:
    try:
        return bool(program(config).start)
    except InputError:
        return False


def trial_group(config: dict[str, Any]) -> str:
    """The group of a run file, by the names of `runs.GROUPS`."""
    if "inference" in config:
        return "inference"
    engine, chosen = config["engine"], config["training"]
    if chosen.get("quantization"):
        return "qlora"
    if chosen.get("lora") or "8bit" in chosen["optimizer"]:
        return "lora"
    if engine["type"] == "pytorch_ddp":
        return "single" if config["hardware"]["num_gpus"] == 1 else "ddp"
    if engine["type"] == "deepspeed":
        places = (engine.get(key, "none") for key in ("offload_optimizer", "offload_param"))
        return "deepspeed" if set(places) == {"none"} else "deepspeed-offload"
    return "megatron" if engine["type"] == "megatron_lm" else str(engine["type"])
