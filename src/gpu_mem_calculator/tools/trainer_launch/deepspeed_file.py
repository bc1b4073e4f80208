"""A DeepSpeed file under transformers.Trainer: `auto` becomes the Trainer's value, and both must
agree (transformers 5.17.0 integrations/deepspeed.py trainer_config_process).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...runfile.config import ModelConfig
from ...runfile.find_model.model_source import find_model
from ...runfile.read import section
from ...runfile.text.errors import InputError, quoted
from ..deepspeed.auto import AUTO, ZERO
from ..deepspeed.batch import MICRO, STEPS, TRAIN
from ..deepspeed.names import CHECKPOINT_KEYS
from ..deepspeed.read import OFFLOADS, RECOMPUTE, RunFileSections, sections
from ..reading.reading import Reading
from ..translation.arguments import Values, tables

# Keys that must have the Trainer's value, and its argument.
MATCHED: Mapping[str, str] = tables(__file__)["matched"]
OFFLOAD = "offload_optimizer"
OPTIM = ("optim", "optim_args")
SETTING = re.compile(r"([\w.]+)(=|: )")
UNKNOWN = "is not a key"
# transformers' models call torch's checkpoint, not DeepSpeed's (modeling_utils.py
# gradient_checkpointing_enable).
WITHOUT_EFFECT = (RECOMPUTE,)


def add_deepspeed_file(reading: Reading, data: Any, values: Values) -> None:
    """Add a DeepSpeed file to a reading with a `program`: the engine's keys, and the optimizer
    where the file has one.

    - values: the value of every argument of the trainer
    """
    if not isinstance(data, Mapping):
        raise InputError(f"DeepSpeed's configuration is an object, not {quoted(data)}")
    completed, problems = _completed(data, values)
    for path in _leaves(data):
        free = path.partition(".")[0] in WITHOUT_EFFECT
        reading.keys[f"deepspeed.{path}"] = "free" if free else "memory"
    reading.problems += problems
    read = _sections(reading, completed)
    if read is None:
        return
    for path in read["no_memory"]:
        reading.keys[f"deepspeed.{path}"] = "free"
        for name in reading.keys:
            if name.startswith(f"deepspeed.{path}."):
                reading.keys[name] = "free"
    engine = {k: v for k, v in read["engine"].items() if k not in CHECKPOINT_KEYS}
    run = reading.run
    run["engine"] = {**engine, **run.get("engine", {})}
    zero = {"stage": engine["zero_stage"]}
    placed = {key: {"device": engine[key]} for key in OFFLOADS if key in engine}
    run["program"]["deepspeed"] = {ZERO: {**zero, **placed}}
    if data.get("optimizer") is not None:  # it takes the place of --optim
        args = run["program"].get("args", {})
        run["program"]["args"] = {key: args[key] for key in args if key not in OPTIM}
        own = {"optimizer_implementation": None, **read["training"]}
        if OFFLOAD in engine:  # torch's Adam is on the host then, like DeepSpeed's
            own["optimizer_implementation"] = None
        kept = {key: own[key] for key in ("optimizer", "optimizer_implementation") if key in own}
        run["training"] = {**kept, **run.get("training", {})}


def _sections(reading: Reading, completed: dict[str, Any]) -> RunFileSections | None:
    """The file's sections; a setting that is not modelled is left out, with a limit. None where
    the file has problems.
    """
    while True:
        try:
            return sections(
                completed, num_gpus=None, model_ranks=1, hidden=lambda: _hidden(reading)
            )
        except InputError as error:
            refused = [one for one in error.problems if _take_out(completed, one)]
            for key, _, why in (sentence.partition(": ") for sentence in refused):
                reading.limit(f"deepspeed.{key}", why or "it is not modelled")
            if not refused:
                reading.problems += error.problems
                return None


def _take_out(data: dict[str, Any], sentence: str) -> bool:
    """Remove the setting that a sentence refuses; False where it is wrong, not refused."""
    found = SETTING.match(sentence)
    if found is None or UNKNOWN in sentence:
        return False
    *parents, last = found[1].split(".")
    section: Any = data
    for name in parents:
        section = section.get(name) if isinstance(section, dict) else None
    if not isinstance(section, dict) or last not in section:
        return False
    del section[last]
    return True


def _completed(data: Values, values: Values) -> tuple[dict[str, Any], list[str]]:
    """The file with the Trainer's values, and a sentence for each value that differs."""
    completed, problems = copy.deepcopy(dict(data)), []
    for key in (*WITHOUT_EFFECT, TRAIN):
        completed.pop(key, None)
    for path, argument in MATCHED.items():
        value = _get(data, path)
        meant = values.get(argument)
        meant = bool(meant) if path.endswith("enabled") else meant
        tells = value or not path.endswith("enabled")  # a precision that is off is no choice
        if value not in (None, AUTO) and value != meant and tells:
            what = f"deepspeed {path}={quoted(value)} differs from {argument}={quoted(meant)}"
            problems.append(f"{what}, which Trainer refuses; write {AUTO!r} in the file")
        if value is not None or path in (MICRO, STEPS):
            _set(completed, path, meant)
    return completed, problems


def _get(data: Values, path: str) -> Any:
    head, _, rest = path.partition(".")
    value = data.get(head)
    return _get(value, rest) if rest and isinstance(value, Mapping) else None if rest else value


def _set(data: dict[str, Any], path: str, value: Any) -> None:
    head, _, rest = path.partition(".")
    if rest:
        data[head] = {**data.get(head, {}), rest: value}
    elif value is not None:
        data[head] = value


def _leaves(data: Values, prefix: str = "") -> Iterator[str]:
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _hidden(reading: Reading) -> int | None:
    """The model's hidden size, where the model is known."""
    model = reading.run.get("model")
    if not model:
        return None
    try:
        return int(find_model(section("model", ModelConfig, dict(model))).arch.hidden)
    except InputError:
        return None
