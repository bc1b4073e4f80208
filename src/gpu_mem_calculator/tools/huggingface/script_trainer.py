"""The keywords of a trainer that a script makes, and the methods that it replaces."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from ..reading.keys import sort_keys
from ..reading.reading import Reading, Section
from ..script.record import ScriptRecord
from ..script.rows import row
from ..script.values import UNKNOWN, Imported, ScriptClass, ScriptFunction, Thing, plain
from ..translation.arguments import Values, tables
from ..translation.tools import TRAINER
from .script_rows import freed, honoured, known_row, limited, name
from .trainers import CLASSES, OTHERS, renamed, script_arguments

ELSEWHERE = ("model", "args", "peft_config", "path", "class", "trained", "evaluates", "ref_model")
# torch's and bitsandbytes' optimizers, and the values of `optim` that make the same.
TABLES = tables(__file__)
OPTIM: Mapping[str, str] = TABLES["optim"]
LOSSES = ("compute_loss", "training_step")
# Methods of transformers' or TRL's trainers that work on tensors.
METHODS: list[str] = TABLES["methods"]


def trainer_values(found: ScriptRecord, trainer: Thing, tool: str, reading: Reading) -> Section:
    """Arguments that a trainer's keywords set, each of them accounted for."""
    values: Section = {}
    table = script_arguments(tool).table
    own = ("model", "args", "peft_config", "ref_model")
    for line in {trainer.line, *(trainer.lines.get(key, 0) for key in own)} - {0}:
        honoured(reading, line, trainer.name)
    for key, value in trainer.values.items():
        line = trainer.line_of(key)
        if key in ELSEWHERE or key.startswith("["):
            continue
        if key == "optimizers":
            values |= optimizer_values(reading, value, line)
        elif key == "compute_metrics":
            if value is not None:
                found.facts["metrics"] = True
                honoured(reading, line, f"{trainer.name}(compute_metrics)")
        elif key in ("callbacks", "model_init"):
            freed(reading, line, f"{trainer.name}({key})")
        elif key == "data_collator":
            _collator(reading, value, line, trainer.name)
        elif key == "reward_funcs":
            _rewards(reading, value, line, trainer.name)
        elif key == "**":
            limited(reading, line, f"{trainer.name}(**...)", "further keywords are not shown")
        else:
            values |= _keyword(reading, trainer, key, value, line, table)
    if trainer.name not in CLASSES and f"trl.{trainer.name}" not in OTHERS.values():
        why = f"it is not modelled; {TRAINER} is estimated"
        limited(reading, trainer.line, f"{trainer.name}(...)", why)
    if trainer.values.get("evaluates"):
        values["eval_strategy"] = "epoch"
    _replaced(reading, trainer)
    return values


def _keyword(
    reading: Reading, trainer: Thing, key: str, value: Any, line: int, table: Values
) -> Section:
    """A keyword of a trainer: its own, or an argument that earlier releases took there."""
    what = f"{trainer.name}({key})"
    if known_row(reading, row("trainer keyword", key), line, what):
        return {}
    if renamed().get(key, key) in table:
        if plain(value):
            prefix = f"{name(reading, line, trainer.name)}."
            return sort_keys(reading, table, {renamed().get(key, key): value}, prefix)
        limited(reading, line, what, "the script computes it when it runs")
    elif value is not None:
        limited(reading, line, what, "not understood")
    return {}


def optimizer_values(reading: Reading, value: Any, line: int) -> Section:
    """`optimizers=(optimizer, scheduler)`: the value of `optim` that makes the same."""
    one = value[0] if isinstance(value, list | tuple) and value else value
    if one is None:
        return {}
    if not isinstance(one, Thing) or one.kind != "optimizer":
        limited(reading, line, "optimizers", "the optimizer is not shown")
        return {}
    last = one.name.rpartition(".")[2]
    if last == "AdamW" and one.values.get("fused") is True:
        return {"optim": "adamw_torch_fused"}
    if last not in OPTIM:
        why = f"{last} is not one of the optimizers that are modelled"
        limited(reading, one.line, last, why)
        return {}
    momentum = last == "SGD" and one.values.get("momentum")
    return {"optim": OPTIM[last]} | ({"optim_args": "momentum=0.9"} if momentum else {})


def _collator(reading: Reading, value: Any, line: int, trainer: str) -> None:
    """A collator pads a batch to its longest sequence, which is at most as long as is counted."""
    libraries = isinstance(value, Thing) and value.kind == "data"
    own = _collating(value)
    if own is not None and _makes_rows(own):
        why = "a collator of one's own may make more rows than the batch has"
        limited(reading, own.lineno, f"{trainer}(data_collator)", why)
    elif value is None or libraries or own is not None or isinstance(value, Imported):
        freed(reading, line, f"{trainer}(data_collator): sequences are at most as long as counted")
    else:
        limited(reading, line, f"{trainer}(data_collator)", "not understood")


def _collating(value: Any) -> Any:
    """The code of a collator of the script's own; None where it is a library's or not shown."""
    if isinstance(value, ScriptFunction):
        return value.node
    made = value.values.get("(class)") if isinstance(value, Thing) else None
    return made.method("__call__") if isinstance(made, ScriptClass) else None


def _makes_rows(node: ast.AST) -> bool:
    """Whether code adds rows in a loop, or repeats and joins them."""
    for one in ast.walk(node):
        if isinstance(one, ast.For) and any(
            isinstance(x, ast.For) for x in ast.walk(one) if x is not one
        ):
            return True
        if isinstance(one, ast.Attribute) and one.attr in ("extend", "repeat", "repeat_interleave"):
            return True
        if isinstance(one, ast.Call) and getattr(one.func, "id", "") == "range":
            return True
    return False


def _rewards(reading: Reading, value: Any, line: int, trainer: str) -> None:
    """Functions of texts run on the host; a reward model is on the GPU."""
    every = value if isinstance(value, list | tuple) else [value]
    models = [one for one in every if isinstance(one, str | Thing) and not _is_function(one)]
    if models or value is UNKNOWN:
        why = "a reward model's weights are on the GPU, and are not counted"
        limited(reading, line, f"{trainer}(reward_funcs)", why, saves=False)
    else:
        freed(reading, line, f"{trainer}(reward_funcs)")


def _is_function(one: Any) -> bool:
    return isinstance(one, Thing) and one.kind in ("instance", "data")


def _replaced(reading: Reading, trainer: Thing) -> None:
    """Methods of the trainer that a class of the script replaces."""
    made = trainer.values.get("class")
    if not isinstance(made, ScriptClass):
        return
    for node in made.node.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        what = f"{made.name}.{node.name}"
        if node.name in LOSSES and not _has_own_loss(node):
            freed(reading, node.lineno, f"{what}: the model's own loss")
        elif known_row(reading, row("trainer method", node.name), node.lineno, what):
            continue
        elif node.name in LOSSES:
            why = "a loss of one's own may keep other tensors than the model's"
            limited(reading, node.lineno, what, why)
        elif node.name.startswith("__") or node.name not in METHODS:
            freed(reading, node.lineno, what)
        else:
            limited(reading, node.lineno, what, "the trainer's own method is replaced")


def _has_own_loss(node: ast.AST) -> bool:
    """Whether a method works on logits itself."""
    words = {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
    words |= {str(one.value) for one in ast.walk(node) if isinstance(one, ast.Constant)}
    return "logits" in words
