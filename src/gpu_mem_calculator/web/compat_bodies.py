"""The bodies that the reference calculator's page sends, as run files.

Its page sends every field, also those of other engines, with the values they had when they were
hidden. A field that the chosen engine does not have is dropped where its value asks for nothing.
Any other is left in place, and reading the run file refuses it with the usual sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..runfile.config import EngineConfig
from ..runfile.read import key_types
from ..training.engines import DEFAULT, engine, spellings

Section = dict[str, Any]
# Fields of its engine section, with the values that ask for nothing.
OFF: Mapping[str, tuple[Any, ...]] = {
    "zero_stage": (0,),
    "offload_optimizer": ("none",),
    "offload_param": ("none",),
    "use_distributed_optimizer": (False,),
    "num_micro_batches": (1,),
}
# Its page's defaults. They ask for something, unless a body has all of `FORM`, as the page's has.
FORM = frozenset({"zero_stage", "offload_optimizer", "offload_param"})
FORM_DEFAULTS: Mapping[str, tuple[Any, ...]] = {
    "zero_stage": (3,),
    "offload_optimizer": ("cpu",),
    "zero_init": (True,),
    "sharding_strategy": ("full_shard",),
}
# The defaults for experts of its page and of its library.
NO_EXPERTS: Mapping[str, tuple[Any, ...]] = {"num_experts": (1, 8), "top_k": (1, 2)}
RENAMED = {"use_distributed_optimizer": "distributed_optimizer"}


def from_reference(body: Any) -> Any:
    """The run file of a reference calculator's body; a run file is returned as it is."""
    if not isinstance(body, Mapping):
        return body
    run = dict(body)
    for name, read in SECTIONS.items():
        if isinstance(run.get(name), Mapping):
            run[name] = read(dict(run[name]), body)
    return run


def _model(section: Section, _body: Mapping[str, Any]) -> Section:
    if section.get("moe_enabled") is not False:
        return section
    return {k: v for k, v in section.items() if not among(v, NO_EXPERTS.get(k, ()))}


def _engine(section: Section, body: Mapping[str, Any]) -> Section:
    name = spellings().get(str(section.get("type") or DEFAULT).lower())
    options = engine(name).options if name else key_types(EngineConfig)
    whole = section.keys() >= FORM
    engine_section = {}
    for key, value in section.items():
        ours = RENAMED.get(key, key)
        values = (*OFF.get(key, ()), *(FORM_DEFAULTS.get(key, ()) if whole else ()))
        values = (None, *values) if values else ()
        if ours in options and (ours == key or ours not in section):
            engine_section[ours] = value
        elif not among(value, values) and not _is_accumulation(key, value, body):
            engine_section[key] = value
    return engine_section


def _is_accumulation(key: str, value: Any, body: Mapping[str, Any]) -> bool:
    """Whether a field is the gradient accumulation of the training section, under another name."""
    training = body.get("training")
    steps = training.get("gradient_accumulation_steps") if isinstance(training, Mapping) else None
    return key == "num_micro_batches" and steps is not None and among(value, (steps,))


def _hardware(section: Section, _body: Mapping[str, Any]) -> Section:
    """The section without its total, where that is num_gpus × gpu_memory_gb."""
    count, each = section.get("num_gpus", 1), section.get("gpu_memory_gb", 80)
    numbers = isinstance(count, int | float) and isinstance(each, int | float)
    total = section.get("total_gpu_memory_gb")
    if "total_gpu_memory_gb" in section and (total is None or (numbers and total == count * each)):
        del section["total_gpu_memory_gb"]
    return section


def among(value: Any, values: tuple[Any, ...]) -> bool:
    """Whether `values` has this value; True does not equal 1 here."""
    flag = isinstance(value, bool)
    return any(flag == isinstance(one, bool) and value == one for one in values)


SECTIONS = {"model": _model, "engine": _engine, "hardware": _hardware}
