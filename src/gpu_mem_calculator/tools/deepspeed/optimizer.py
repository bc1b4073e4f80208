"""Reads the optimizer and the scheduler of a DeepSpeed file (runtime/engine.py
_configure_basic_optimizer, runtime/lr_schedules.py, DeepSpeed 0.19.8)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...runfile.text.errors import nearest
from ..translation.arguments import Values, tables
from .auto import AUTO
from .checked_file import KINDS, auto_message, convert_value, quote
from .keys import TABLES, VERSION, FixedKey, MemoryFreeKey, MemoryKey, Table

SECOND_COPY = "with it holds a second copy of the gradients, which is not modelled"
ADAM, LION, SGD = (TABLES[name] for name in ("adam", "lion", "sgd"))
PARAMS: Mapping[str, Table] = {"adam": ADAM, "adamw": ADAM, "lion": LION, "SGD": SGD}
DATA = tables(__file__)
# Names that DeepSpeed knows or knew, and why they are refused.
OTHERS: Mapping[str, str] = DATA["others"]
# Arguments of DeepSpeed's schedules; those of torch's schedules are not checked.
SCHEDULES: Mapping[str, list[str]] = DATA["schedules"]
TORCH_SCHEDULES: list[str] = DATA["torch_schedules"]
NOT_UNDER = "not modelled under DeepSpeed"
PATH = "optimizer.params"
SHOWN = ("AdamW", "Adam", "Lion", "SGD")


def optimizer(section: Values, problems: list[str], free: list[str]) -> dict[str, Any]:
    """The keys of `training` that follow from the `optimizer` section.

    Adds its problems to `problems`, and keys that take no memory to `free`.
    """
    problems += _unknown_keys("optimizer", (key for key in section if key != "legacy_fusion"))
    if section.get("legacy_fusion"):
        problems.append("optimizer.legacy_fusion=true is not modelled; leave it out")
    name, params = section.get("type"), section.get("params") or {}
    known = _known(name)
    if known is None:
        problems.append(_refusal(name))
        return {}
    if not isinstance(params, Mapping):
        problems.append(f"optimizer.params={quote(params)} must be an object")
        return {}
    read = dict(_params(params, PARAMS[known], problems, free))
    free += [f"{PATH}.weight_decay"] * ("weight_decay" in read)
    return _adam(known, read, problems) if known.startswith("adam") else _lion_or_sgd(known, read)


def _unknown_keys(where: str, section: Iterable[str]) -> Iterator[str]:
    for key in section:
        if key not in ("type", "params"):
            hint = nearest(key, ("type", "params"))
            yield f"{where}.{key} is not a key of DeepSpeed {VERSION}{hint}"


def _known(name: Any) -> str | None:
    """The optimizer's key in `PARAMS`, or None: DeepSpeed's names in any case, torch's exactly."""
    text = str(name)
    if text in PARAMS:
        return text
    return text.lower() if text.lower() in PARAMS else None


def _refusal(name: Any) -> str:
    if name is None:
        return f"optimizer has no 'type'; add one of {', '.join(SHOWN)}"
    if name == AUTO:
        return auto_message("optimizer.type")
    why = OTHERS.get(str(name).lower().replace("/", ""), f"it is {NOT_UNDER}")
    hint = nearest(str(name), SHOWN) or f"; use one of {', '.join(SHOWN)}"
    return f"optimizer.type={quote(name)}: {why}{hint}"


def _params(
    params: Values, table: Table, problems: list[str], free: list[str]
) -> Iterator[tuple[str, Any]]:
    """The parameters that change memory, with their values; others are free or refused."""
    for key, value in params.items():
        path, rule = f"{PATH}.{key}", table.get(key)
        if key == "max_grad_norm":
            fix = f"set gradient_clipping to {quote(value)}"
            problems.append(f"{path}={quote(value)}: DeepSpeed refuses it there; {fix}")
        elif rule is None:
            problems.append(f"{path} is not one that the optimizer has{nearest(key, table)}")
        elif value == AUTO and (isinstance(rule, MemoryFreeKey) or key == "weight_decay"):
            free.append(path)  # the Trainer's weight_decay is 0
        elif value == AUTO:
            problems.append(auto_message(path))
        elif isinstance(rule, FixedKey) and value is not None and value not in rule.values:
            fix = f"set it to {quote(rule.values[0])} or leave it out"
            problems.append(f"{path}={quote(value)}: {rule.why}; {fix}")
        elif isinstance(rule, MemoryKey) and value is not None:
            try:
                yield key, convert_value(value, rule.kind)
            except ValueError:
                problems.append(f"{path}={quote(value)} must be {KINDS[rule.kind]}")
        else:
            free.append(path)


def _adam(name: str, params: dict[str, Any], problems: list[str]) -> dict[str, Any]:
    """'Adam' is AdamW unless adam_w_mode is false; torch_adam is torch's foreach implementation."""
    training: dict[str, Any] = {"optimizer": "adamw"}
    if name == "adam" and params.get("adam_w_mode") is False:
        training["optimizer"] = "adam"
    if not params.get("torch_adam"):
        problems += (
            f"{PATH}.{key} is for torch's Adam; add torch_adam true, or leave it out"
            for key in ("foreach", "fused")
            if key in params
        )
        return training
    if params.get("fused"):
        fix = "leave torch_adam out for DeepSpeed's own"
        problems.append(f"{PATH}.fused=true: torch's fused Adam is {NOT_UNDER}; {fix}")
    elif params.get("foreach") is False:
        problems.append(f"{PATH}.foreach=false: torch's for loop is {NOT_UNDER}; leave it out")
    if params.get("weight_decay") and training["optimizer"] == "adam":
        decay = quote(params["weight_decay"])
        problems.append(f"{PATH}.weight_decay={decay}: torch's Adam {SECOND_COPY}; use AdamW")
    return {**training, "optimizer_implementation": "foreach"}


def _lion_or_sgd(name: str, params: dict[str, Any]) -> dict[str, Any]:
    """The keys of `training` for Lion and for torch's SGD."""
    if name == "lion":
        return {"optimizer": "lion"}
    training = {"optimizer": "sgd_momentum" if params.get("momentum") else "sgd"}
    implementations = [key for key in ("foreach", "fused") if params.get(key)]
    if implementations:
        training["optimizer_implementation"] = implementations[0]
    return training


def scheduler(section: Values, problems: list[str], free: list[str]) -> None:
    """Check the names in the `scheduler` section, as DeepSpeed does; it takes no memory."""
    name, params = section.get("type"), section.get("params") or {}
    problems += _unknown_keys("scheduler", section)
    if str(name) not in (*SCHEDULES, *TORCH_SCHEDULES):
        hint = nearest(str(name), SCHEDULES) or f"; use one of {', '.join(SCHEDULES)}"
        refused = f"scheduler.type={quote(name)} is not a schedule of DeepSpeed's or torch's"
        problems.append(refused + hint)
        return
    if not isinstance(params, Mapping):
        problems.append(f"scheduler.params={quote(params)} must be an object")
        return
    known = SCHEDULES.get(str(name))
    problems += (
        f"scheduler.params.{key} is not one that {name} has{nearest(key, known)}"
        for key in params
        if known is not None and key not in known
    )
    free.append("scheduler")
