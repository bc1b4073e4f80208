"""Checkpoints of a run: DeepSpeed's own files, and beside them what a run must share to go on."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

RUN = "run.json"
SHARED = (
    "task",
    "text",
    "seed",
    "ranks",
    "stages",
    "zero_stage",
    "n_layer",
    "n_embd",
    "n_head",
    "block_size",
)
"""Options that a resumed run has in common with the saved one: DeepSpeed's shards fit no other."""


def latest(folder: str) -> Path:
    """The newest checkpoint of a folder, as DeepSpeed's own file `latest` names it."""
    try:
        return Path(folder) / (Path(folder) / "latest").read_text(encoding="utf-8").strip()
    except OSError:
        raise ValueError(f"--resume finds no checkpoint in {folder}: leave it out") from None


def saved_steps(options: Namespace) -> int:
    """The step to go on from: 0 where nothing is resumed; a sentence where runs differ."""
    if not options.resume:
        return 0
    path = latest(options.save) / RUN
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ValueError(f"{path} cannot be read: save with train.py") from None
    for name in SHARED:
        was, now = saved.get(name), getattr(options, name)
        if was != now:
            raise ValueError(
                f"--resume: {name} was {was!r} when {path.parent} was saved and is "
                f"{now!r} now: use the same"
            )
    if saved["steps"] >= options.steps:
        raise ValueError(
            f"--steps {options.steps} is done already in {path.parent}: use more "
            f"than {saved['steps']}"
        )
    return int(saved["steps"])


def load(engine: Any, options: Namespace, first: int) -> None:
    """Weights, optimizer and learning rate as they were at step `first`."""
    if first:
        engine.load_checkpoint(options.save, tag=latest(options.save).name)


def save(engine: Any, options: Namespace, steps: int) -> None:
    """All ranks write their shards; rank 0 what they belong to."""
    tag = f"step{steps}"
    if options.rank == 0:
        run = {name: getattr(options, name) for name in SHARED} | {"steps": steps}
        folder = Path(options.save) / tag
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RUN).write_text(json.dumps(run, indent=2) + "\n", encoding="utf-8")
    engine.save_checkpoint(options.save, tag=tag)
