"""`training.recompute`: policies of recompute by the frameworks' own names.

- torchtitan: `mode`, `selective_ac_option`, `early_stop` (torchtitan 0.2.2 config/job_config.py)
- transformers: `every_n_layers`, `offload` (5.17.0 modeling_utils.py gradient_checkpointing_enable,
  Trainer's gradient_checkpointing_kwargs)
- Axolotl: `selective_checkpointing` (Axolotl 067b021 docs/gradient_checkpointing.qmd)
- llm-foundry: `activation_checkpointing_target`, a checkpoint around modules of each layer
- Megatron: `recompute_granularity`, `recompute_method`, `recompute_num_layers`, `recompute_modules`
  (megatron-core 0.19.2 transformer/transformer_config.py)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...run.recompute import (
    ATTENTION,
    BY_OPERATION,
    EVERY_SECOND_MM,
    EVERYTHING,
    FULL,
    MEGATRON,
    NONE,
    SELECTIVE,
    RecomputeRule,
)
from ..config import TrainingConfig
from ..text.errors import InputError, nearest, quoted

PATH, LEVEL = "training.recompute", "training.activation_checkpointing"
# Values of activation_checkpointing: the policy, and on how many quarters of the layers.
LEVELS: dict[Any, tuple[str, int]] = {
    **dict.fromkeys((0, NONE), (NONE, 4)),
    **dict.fromkeys((1, SELECTIVE), (SELECTIVE, 4)),
    2: (FULL, 2),
    3: (FULL, 3),
    **dict.fromkeys((4, FULL), (FULL, 4)),
}
# Names of whole policies, and the same in a framework's keys.
NAMES: Mapping[str, Mapping[str, Any]] = {
    NONE: {},
    FULL: {},
    "core_attn": {"recompute_granularity": SELECTIVE, "recompute_modules": ["core_attn"]},
    BY_OPERATION: {"mode": SELECTIVE, "selective_ac_option": "op"},
    "every_2nd_layer": {"mode": SELECTIVE, "selective_ac_option": "2"},
    "attention_kept": {"selective_checkpointing": True},
    "full_offloaded": {"offload": True},
}
# Keys that frameworks have and that are not modelled, with the nearest fix.
NOT_MODELLED: Mapping[str, str] = {
    "activation_offloading": "(TRL, torchtune, Axolotl) is not modelled; offload=true, which is "
    "transformers', keeps the inputs of recomputed layers on the host, too",
    "distribute_saved_activations": "is not modelled; use parallelism.sequence_parallel instead",
}
TARGETS = ("attention", "mlp")  # of activation_checkpointing_target
MODULES = ("core_attn", "layernorm", "mlp", "moe", "moe_act", "mla_up_proj", "shared_experts")


class RecomputePolicy(Struct, frozen=True):
    """A policy as fields of `Run`."""

    recompute: str
    quarters: int = 4
    rule: RecomputeRule = EVERYTHING


def find_recompute(config: TrainingConfig) -> RecomputePolicy:
    """The policy of a training section: of `recompute`, or of `activation_checkpointing`."""
    level = config.activation_checkpointing
    kind, quarters = LEVELS[0 if level is None else level]
    if config.recompute is None:
        return RecomputePolicy(kind, quarters)
    chosen = _policy(config.recompute)
    if level is not None and (kind, quarters) != (chosen.recompute, 4):
        both = f"{LEVEL}={quoted(level)} and {PATH}={quoted(config.recompute)} differ"
        raise InputError(f"{both}; leave {LEVEL} out")
    return chosen


def _policy(given: str | Mapping[str, Any]) -> RecomputePolicy:
    if isinstance(given, str):
        if given not in NAMES:
            hint = nearest(given, NAMES) or f"; choose {', '.join(NAMES)}"
            raise InputError(f"{PATH}={given!r} is not a known policy{hint}")
        if given in (NONE, FULL):
            return RecomputePolicy(given)
        given = NAMES[given]
    if not given:
        raise InputError(f"{PATH}={{}} has no key; give a framework's keys, or {_names()}")
    for key, why in NOT_MODELLED.items():
        if key in given:
            raise InputError(f"{PATH}.{key}={quoted(given[key])} {why}")
    known = [key for _, keys, _ in FRAMEWORKS for key in keys]
    unknown = [key for key in given if key not in known]
    if unknown:
        hint = nearest(unknown[0], known) or f"; it has {', '.join(known)}"
        raise InputError(f"{PATH}.{unknown[0]} is not a known key{hint}")
    having = [row for row in FRAMEWORKS if given.keys() & row[1]]
    if len(having) > 1:
        names = " and ".join(name for name, _, _ in having)
        raise InputError(f"{PATH} has keys of {names}; give those of one framework")
    name, _, policy = having[0]
    found = policy(given)
    return replace(found, rule=replace(found.rule, framework=name))


def _names() -> str:
    return ", ".join(repr(name) for name in NAMES)


def _choice(given: Mapping[str, Any], key: str, allowed: tuple[Any, ...], default: Any) -> Any:
    """A key's value; raises a sentence if it is not allowed."""
    value = given.get(key, default)
    if not any(value is one or (value == one and type(value) is type(one)) for one in allowed):
        choice = ", ".join(quoted(one) for one in allowed if one is not None)
        raise InputError(f"{PATH}.{key}={quoted(value)} must be one of {choice}")
    return value


def _whole(given: Mapping[str, Any], key: str) -> int:
    value = given[key]
    if type(value) is not int or value < 1:
        raise InputError(f"{PATH}.{key}={quoted(value)} must be a whole number, 1 or more")
    return value


def _torchtitan(given: Mapping[str, Any]) -> RecomputePolicy:
    """torchtitan 0.2.2 distributed/activation_checkpoint.py; `early_stop` is off by default."""
    early = _choice(given, "early_stop", (True, False), False)
    if given.get("mode") == "memory_budget":
        fix = "use 'full', or 'selective' with selective_ac_option 'op'"
        why = "needs torch.compile, which is not modelled"
        raise InputError(f"{PATH}.mode='memory_budget' {why}; {fix}")
    mode = _choice(given, "mode", (NONE, FULL, SELECTIVE), SELECTIVE)
    if mode != SELECTIVE:
        _without(given, "selective_ac_option", f"mode {mode!r}", "set mode to 'selective'")
        return RecomputePolicy(mode, rule=RecomputeRule(early_stop=early))
    option = given.get("selective_ac_option", "2")
    if option == "op":
        rule = RecomputeRule(keeps=(ATTENTION, EVERY_SECOND_MM), early_stop=early)
        return RecomputePolicy(BY_OPERATION, rule=rule)
    if not (isinstance(option, str | int) and str(option).isdigit() and int(option) > 0):
        must = "must be 'op' or a whole number such as '2', every second layer"
        raise InputError(f"{PATH}.selective_ac_option={quoted(option)} {must}")
    rule = RecomputeRule(every=int(option), first=int(option) - 1, early_stop=early)
    return RecomputePolicy(FULL, rule=rule)


def _without(given: Mapping[str, Any], key: str, needs: str, fix: str) -> None:
    if given.get(key) is not None:
        raise InputError(f"{PATH}.{key}={quoted(given[key])} has no effect with {needs}; {fix}")


def _megatron(given: Mapping[str, Any]) -> RecomputePolicy:
    """megatron-core 0.19.2 transformer/transformer_config.py:1724-1782."""
    implied = SELECTIVE if "recompute_modules" in given else None
    key = "recompute_granularity"
    granularity = _choice(given, key, (FULL, SELECTIVE, None), implied)
    if granularity is None:
        raise InputError(
            f"{PATH} has keys of Megatron without {key}; set it: 'full' or 'selective'"
        )
    if granularity == SELECTIVE:
        for key in ("recompute_method", "recompute_num_layers"):
            _without(given, key, "recompute_granularity 'selective'", "leave it out")
        return RecomputePolicy(SELECTIVE, rule=_modules(given))
    _without(given, "recompute_modules", "recompute_granularity 'full'", "leave it out")
    for key, fix in (("recompute_method", "'uniform' or 'block'"), ("recompute_num_layers", "1")):
        if given.get(key) is None:
            raise InputError(f"{PATH}.recompute_granularity='full' needs {key}; set it to {fix}")
    method = _choice(given, "recompute_method", ("uniform", "block"), None)
    count = _whole(given, "recompute_num_layers")
    uniform, block = RecomputeRule(layers_together=count), RecomputeRule(first_layers=count)
    return RecomputePolicy(FULL, rule=uniform if method == "uniform" else block)


def _modules(given: Mapping[str, Any]) -> RecomputeRule:
    names = given.get("recompute_modules", ["core_attn"])
    listed = names if isinstance(names, list | tuple) else []
    unknown = [name for name in listed if name not in MODULES]
    if not listed or unknown:
        value = unknown[0] if unknown else names
        rule = f"has {quoted(value)}; choose from {', '.join(MODULES)}"
        raise InputError(f"{PATH}.recompute_modules {rule}")
    return RecomputeRule(modules=tuple(dict.fromkeys(listed)))


def _transformers(given: Mapping[str, Any]) -> RecomputePolicy:
    """The first layer and every n-th after it; `offload` moves their inputs to pinned host RAM."""
    every = _whole(given, "every_n_layers") if "every_n_layers" in given else 1
    offload = _choice(given, "offload", (True, False), False)
    return RecomputePolicy(FULL, rule=RecomputeRule(every=every, offload=offload))


def _llm_foundry(given: Mapping[str, Any]) -> RecomputePolicy:
    """Modules that a checkpoint wrapper is put around, one each."""
    key = "activation_checkpointing_target"
    names = given[key] if isinstance(given[key], list | tuple) else [given[key]]
    if not names or any(name not in TARGETS for name in names):
        allowed = " or ".join(map(repr, TARGETS))
        raise InputError(f"{PATH}.{key}={quoted(given[key])} must be {allowed}, or a list of them")
    return RecomputePolicy(SELECTIVE, rule=RecomputeRule(modules=tuple(dict.fromkeys(names))))


def _axolotl(given: Mapping[str, Any]) -> RecomputePolicy:
    """Axolotl's selective_checkpointing: torch's policy by operation that keeps attention."""
    chosen = given["selective_checkpointing"]
    if chosen is not True and chosen != {"save": ["attention"]}:
        must = "must be true, which saves attention; for matmuls too use recompute 'op'"
        raise InputError(f"{PATH}.selective_checkpointing={quoted(chosen)} {must}")
    return RecomputePolicy(BY_OPERATION, rule=RecomputeRule(keeps=(ATTENTION,)))


# A framework, its keys, and the function that reads them.
FRAMEWORKS: tuple[
    tuple[str, tuple[str, ...], Callable[[Mapping[str, Any]], RecomputePolicy]], ...
] = (
    ("torchtitan", ("mode", "selective_ac_option", "early_stop"), _torchtitan),
    ("transformers", ("every_n_layers", "offload"), _transformers),
    ("llm-foundry", ("activation_checkpointing_target",), _llm_foundry),
    (
        MEGATRON,
        ("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules"),
        _megatron,
    ),
    ("Axolotl", ("selective_checkpointing",), _axolotl),
)
