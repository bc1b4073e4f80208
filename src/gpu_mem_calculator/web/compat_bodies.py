"""What the reference calculator's own page sends, as a run file.

Its page sends every field it has, those of other engines with them, as they stood when they were
hidden. A field that means nothing to the chosen engine is dropped where it says nothing; what says
something is left in place, and reading the run file refuses it in the usual words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.models import EngineConfig
from ..core.runfile import hints
from ..engines import engine, spellings

Section = dict[str, Any]
# Fields of its engine section that ask for nothing, with the values that do so.
OFF: Mapping[str, tuple[Any, ...]] = {
    "zero_stage": (0,),
    "offload_optimizer": ("none",),
    "offload_param": ("none",),
    "use_distributed_optimizer": (False,),
    "num_micro_batches": (1,),
}
# Its defaults, which ask for something unless the whole form is there to show what they are.
FORM = frozenset({"zero_stage", "offload_optimizer", "offload_param"})
KEPT: Mapping[str, tuple[Any, ...]] = {
    "zero_stage": (3,),
    "offload_optimizer": ("cpu",),
    "zero_init": (True,),
    "sharding_strategy": ("full_shard",),
}
# Its defaults for experts, of its page and of its library.
NO_EXPERTS: Mapping[str, tuple[Any, ...]] = {"num_experts": (1, 8), "top_k": (1, 2)}
RENAMED = {"use_distributed_optimizer": "distributed_optimizer"}


def from_reference(body: Any) -> Any:
    """A run file from a body of the reference calculator; a run file stays as it is."""
    if not isinstance(body, Mapping):
        return body
    made = dict(body)
    for name, read in SECTIONS.items():
        if isinstance(made.get(name), Mapping):
            made[name] = read(dict(made[name]), body)
    return made


def _model(section: Section, _body: Mapping[str, Any]) -> Section:
    if section.get("moe_enabled") is not False:
        return section
    return {k: v for k, v in section.items() if not among(v, NO_EXPERTS.get(k, ()))}


def _engine(section: Section, body: Mapping[str, Any]) -> Section:
    name = spellings().get(str(section.get("type") or "pytorch_ddp").lower())
    own = engine(name).options if name else hints(EngineConfig)
    whole = section.keys() >= FORM
    made = {}
    for key, value in section.items():
        ours = RENAMED.get(key, key)
        values = (*OFF.get(key, ()), *(KEPT.get(key, ()) if whole else ()))
        values = (None, *values) if values else ()
        if ours in own and (ours == key or ours not in section):
            made[ours] = value
        elif not among(value, values) and not _said_elsewhere(key, value, body):
            made[key] = value
    return made


def _said_elsewhere(key: str, value: Any, body: Mapping[str, Any]) -> bool:
    """Micro-batches are a run's gradient accumulation: the same number twice is no other one."""
    training = body.get("training")
    steps = training.get("gradient_accumulation_steps") if isinstance(training, Mapping) else None
    return key == "num_micro_batches" and steps is not None and among(value, (steps,))


def _hardware(section: Section, _body: Mapping[str, Any]) -> Section:
    """The total is a product of what is there beside it."""
    count, each = section.get("num_gpus", 1), section.get("gpu_memory_gb", 80)
    numbers = isinstance(count, int | float) and isinstance(each, int | float)
    total = section.get("total_gpu_memory_gb")
    if "total_gpu_memory_gb" in section and (total is None or (numbers and total == count * each)):
        del section["total_gpu_memory_gb"]
    return section


def among(value: Any, values: tuple[Any, ...]) -> bool:
    """Whether a value is one of some; true is not 1."""
    flag = isinstance(value, bool)
    return any(flag == isinstance(one, bool) and value == one for one in values)


SECTIONS = {"model": _model, "engine": _engine, "hardware": _hardware}
