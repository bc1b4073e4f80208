"""Data sets that are not on this machine: rows of words, with the columns that the script reads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .simulation import Simulation

SEQ_LEN, ROWS = 1024, 512
SPLITS = ("train", "validation", "test")
COLUMNS = {
    "DPOTrainer": ("prompt", "chosen", "rejected"),
    "CPOTrainer": ("prompt", "chosen", "rejected"),
    "ORPOTrainer": ("prompt", "chosen", "rejected"),
    "RewardTrainer": ("chosen", "rejected"),
    "KTOTrainer": ("prompt", "completion", "label"),
    "GRPOTrainer": ("prompt", "solution"),
    "RLOOTrainer": ("prompt", "solution"),
}
"""Columns of the data of trl's trainers (its dataset_formats); other scripts read `text`."""


def columns_of(source: str) -> tuple[str, ...]:
    """The columns that a script's text asks for."""
    found = re.findall(r"\b(\w+Trainer)\b", source)
    return next((COLUMNS[name] for name in found if name in COLUMNS), ("text",))


def example(columns: tuple[str, ...], seq_len: int, prompt_len: int) -> dict[str, Any]:
    """A row: a prompt and what follows it have `seq_len` words together; where the completion is
    generated, the prompt has them.
    """
    prompt = seq_len if "solution" in columns else prompt_len
    lengths = {"prompt": prompt, "text": seq_len}
    rest = seq_len - prompt_len if "prompt" in columns else seq_len
    values: dict[str, Any] = {
        name: " ".join(["w9"] * lengths.get(name, max(1, rest))) for name in columns
    }
    if "solution" in columns:  # trl's reward functions read messages
        values["prompt"] = [{"role": "user", "content": values["prompt"]}]
    if "label" in columns:
        values["label"] = True
    return values


def change_datasets(simulation: Simulation) -> Any:
    """A change of `datasets`: load_dataset makes rows where the data is not on this machine."""

    def change(module: Any) -> None:
        read = module.load_dataset

        def load_dataset(path: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return read(path, *args, **kwargs)
            except Exception as error:  # what a library raises for a missing file differs
                if Path(str(path)).exists() or kwargs.get("data_files"):
                    raise
                return _made(simulation, module, str(path), error, **kwargs)

        simulation.replace(module, "load_dataset", load_dataset)
        new_name = module.fingerprint.generate_random_fingerprint
        for user in (module.fingerprint, module.arrow_dataset):
            # a hash of data and code, by which results are cached; the code cannot be pickled
            for name in ("update_fingerprint", "generate_fingerprint"):
                simulation.replace(user, name, lambda *_, **__: new_name())
        for name in ("map", "filter"):
            method = _in_this_process(getattr(module.Dataset, name))
            simulation.replace(module.Dataset, name, method)

    return change


def _in_this_process(method: Any) -> Any:
    def call(data: Any, *args: Any, num_proc: Any = None, **kwargs: Any) -> Any:
        return method(data, *args, **kwargs)

    return call


def _made(
    simulation: Simulation,
    module: Any,
    path: str,
    error: Exception,
    *,
    split: Any = None,
    streaming: bool = False,
    **_: Any,
) -> Any:
    plan = simulation.plan
    seq_len = int(plan.shapes.get("seq_len", SEQ_LEN))
    prompt_len = int(plan.shapes.get("prompt_len", max(1, seq_len // 2)))
    columns = columns_of(_source(plan))
    rows = [example(columns, seq_len, prompt_len)] * int(plan.shapes.get("rows", ROWS))
    data = module.Dataset.from_list(rows)
    data = data.to_iterable_dataset() if streaming else data
    words = f"{', '.join(columns)} of {seq_len:,} tokens in all"
    simulation.note(f"The data set {path} is not on this machine: its rows are {words} (--shapes).")
    if split is not None:
        return data
    kind = module.IterableDatasetDict if streaming else module.DatasetDict
    return kind(dict.fromkeys(SPLITS, data))


def _source(plan: Any) -> str:
    from importlib.util import find_spec

    if not plan.module:
        return Path(plan.target).read_text(encoding="utf-8", errors="replace")
    spec = find_spec(plan.target)
    file = spec.origin if spec is not None else None
    return Path(file).read_text(encoding="utf-8", errors="replace") if file else ""
