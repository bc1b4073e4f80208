"""What the text of a training script shows: its options, its trainer, and what it passes on.

The text is parsed, never executed. Branches whose condition the command decides are followed.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from ...core.errors import InputError
from .constants import UNKNOWN, constant

PARSERS = ("HfArgumentParser", "TrlParser", "H4ArgumentParser")
# Calls whose arguments are read, by the last part of their name.
CALLS = ("LoraConfig", "BitsAndBytesConfig", "from_pretrained", "from_config")
CONFIGS = ("TrainingArguments", "Seq2SeqTrainingArguments")
TRUE = ("store_true", "store_false")
LENGTH = "max_length"
DEEPEST = 60  # levels of a text that are followed


class ScriptCall(Struct, frozen=True):
    """A call in a script: what is called, on what, and its arguments by name; the first one
    without a name is under the empty name. UNKNOWN where the text does not show a value.
    """

    name: str
    owner: str
    arguments: Mapping[str, Any]


class ScriptText(Struct, kw_only=True):
    """What a script's text shows.

    - `imports`: modules and names that it imports
    - `options`: its own options and fields of its dataclasses, each with its default
    - `parsed`: classes whose fields a parser of transformers or TRL makes options
    - `calls`: calls of trainers, configurations and loaders
    - `lengths`: tokens to which other calls, such as a tokenizer's, cut a sequence
    """

    imports: set[str] = field(default_factory=set)
    options: dict[str, Any] = field(default_factory=dict)
    parsed: set[str] = field(default_factory=set)
    calls: list[ScriptCall] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    def named(self, name: str) -> list[ScriptCall]:
        """The calls of a name."""
        return [one for one in self.calls if one.name == name]


def read_script(text: str, path: str, given: Mapping[str, Any]) -> ScriptText:
    """What the text shows, with the values of options that the command gives."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(f"{path} is not a Python script that can be read") from None
    script = ScriptText()
    for node in ast.walk(tree):
        _add_imports(node, script)
        _add_options(node, script)
    names: dict[str, Any] = {f".{name}": value for name, value in script.options.items()}
    names |= {f".{name}": value for name, value in given.items()}
    try:
        for statement in tree.body:
            _follow(statement, script, names, 0)
    except RecursionError:
        raise InputError(f"{path} is nested too deeply to be read") from None
    return script


def _add_imports(node: ast.AST, script: ScriptText) -> None:
    if isinstance(node, ast.Import):
        script.imports |= {one.name for one in node.names}
    elif isinstance(node, ast.ImportFrom):
        script.imports |= {node.module or ""} | {one.name for one in node.names}


def _add_options(node: ast.AST, script: ScriptText) -> None:
    """Options of argparse, and fields of dataclasses."""
    if isinstance(node, ast.Call) and _name(node.func) == "add_argument":
        words = [one.value for one in node.args if isinstance(one, ast.Constant)]
        long = [one for one in words if isinstance(one, str) and one.startswith("--")]
        settings = {one.arg: constant(one.value, {}) for one in node.keywords if one.arg}
        off = {"store_true": False, "store_false": True}.get(str(settings.get("action")))
        for word in long:
            script.options[word[2:].replace("-", "_")] = settings.get("default", off)
    elif isinstance(node, ast.ClassDef) and any(
        "dataclass" in _name(d) for d in node.decorator_list
    ):
        for one in node.body:
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                script.options[one.target.id] = _field_default(one.value)


def _field_default(node: ast.AST | None) -> Any:
    if isinstance(node, ast.Call) and _name(node.func) in ("field", "HfArg", "Field"):
        found = [one.value for one in node.keywords if one.arg == "default"]
        return constant(found[0], {}) if found else UNKNOWN
    return constant(node, {})


def _follow(node: ast.AST, script: ScriptText, names: dict[str, Any], depth: int) -> None:
    """Collect calls in the order of the text, without branches that are not taken."""
    if depth > DEEPEST:
        return
    if isinstance(node, ast.If):
        test = constant(node.test, names)
        if _is_main(node.test):
            test = True
        taken = (
            [*node.body, *node.orelse] if test is UNKNOWN else node.body if test else node.orelse
        )
        for one in (node.test, *taken):
            _follow(one, script, names, depth + 1)
        return
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        _follow(node.value, script, names, depth + 1)
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if isinstance(target, ast.Name):
                names[target.id] = constant(node.value, names)
            elif isinstance(target, ast.Attribute):
                names[f".{target.attr}"] = constant(node.value, names)
        return
    if isinstance(node, ast.Call):
        _add_call(node, script, names)
    for one in _children(node):
        _follow(one, script, names, depth + 1)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    yield from ast.iter_child_nodes(node)


def _add_call(node: ast.Call, script: ScriptText, names: Mapping[str, Any]) -> None:
    name = _name(node.func)
    if name in PARSERS:
        inner = [
            one
            for argument in [*node.args, *(k.value for k in node.keywords)]
            for one in ast.walk(argument)
        ]
        script.parsed |= {_name(one) for one in inner if isinstance(one, ast.Name | ast.Attribute)}
    if name in CALLS or name.endswith(("Trainer", "Config")) or name in CONFIGS:
        arguments = {one.arg: constant(one.value, names) for one in node.keywords if one.arg}
        for one in node.keywords:
            if one.arg is None and isinstance(spread := constant(one.value, names), Mapping):
                arguments = {**spread, **arguments}
        if node.args:
            arguments[""] = constant(node.args[0], names)
        owner = _name(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        script.calls.append(ScriptCall(name, owner, arguments))
    else:
        _add_length(node, script, names)


def _add_length(node: ast.Call, script: ScriptText, names: Mapping[str, Any]) -> None:
    """max_length of a tokenizer, of a map over its data, or of the script's own function."""
    for one in node.keywords:
        length = constant(one.value, names) if one.arg == LENGTH else UNKNOWN
        if isinstance(length, int) and not isinstance(length, bool) and length > 0:
            script.lengths.append(length)


def _is_main(test: ast.AST) -> bool:
    return isinstance(test, ast.Compare) and getattr(test.left, "id", "") == "__name__"


def _name(node: ast.AST) -> str:
    """The last part of a name: `DPOTrainer` of `trl.DPOTrainer`."""
    if isinstance(node, ast.Call):
        return _name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
