"""The configuration of `accelerate launch` as Trainer uses it.

accelerate 1.15.0 utils/launch.py, utils/dataclasses.py; transformers 5.17.0 training_args.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...ledger.quoting import quoted
from ...runfile.program import Program, Section, Translation
from ..translation.arguments import (
    Values,
    argument_problems,
    argument_table,
    flat_arguments,
    tables,
)

TABLE = "trainer/accelerate"
# Sections whose keys the launcher reads with a prefix, which a file may leave out.
PREFIXES: dict[str, str] = tables(__file__)["prefixes"]
WRAPS_LAYERS = "TRANSFORMER_BASED_WRAP"
PRECISIONS = ("no", "bf16", "fp16")


def flat_settings(accelerate: Values) -> Section:
    """Every setting by its full name: `fsdp_config.fsdp_version`."""
    named: Section = {}
    for key, value in accelerate.items():
        prefix = PREFIXES.get(key)
        if prefix and isinstance(value, Mapping):
            value = {f"{prefix}{str(one).removeprefix(prefix)}": value[one] for one in value}
        named[key] = value
    return flat_arguments(argument_table(TABLE), named)


def accelerate_problems(accelerate: Values) -> Iterator[str]:
    """A sentence for each setting that Accelerate does not have, or that is not modelled."""
    flat = flat_settings(accelerate)
    for sentence in argument_problems("Accelerate 1.15.0", argument_table(TABLE), flat):
        yield sentence.replace("program.args.", "program.accelerate.")
    precision = str(flat.get("mixed_precision", "no")).lower()
    if precision not in PRECISIONS:
        choice = "'no', 'bf16' or 'fp16'"
        yield f"program.accelerate.mixed_precision={precision!r} is not modelled; use {choice}"
    policy = flat.get("fsdp_config.fsdp_auto_wrap_policy", WRAPS_LAYERS)
    if str(policy).upper() != WRAPS_LAYERS:
        why = f"only units of one layer are modelled; use {WRAPS_LAYERS}"
        yield f"program.accelerate.fsdp_config.fsdp_auto_wrap_policy={quoted(policy)}: {why}"
    backend = str(flat.get("dynamo_config.dynamo_backend", "no")).lower()
    if backend not in ("no", "inductor"):
        why = "is not modelled; use 'inductor'"
        yield f"program.accelerate.dynamo_config.dynamo_backend={backend!r} {why}"


def mixed_precision(program: Program, values: Values) -> str:
    """bf16, fp16, or empty: Trainer's argument, else that of the launcher (__post_init__)."""
    if values["fp16"]:
        return "fp16"
    if values["bf16"]:
        return "bf16"
    word = str((program.accelerate or {}).get("mixed_precision", "no")).lower()
    return word if word in ("bf16", "fp16") else ""


def add_compile(program: Program, result: Translation) -> None:
    """Add torch.compile where the launcher asks for it (accelerator.py prepare_model)."""
    flat = flat_settings(program.accelerate or {})
    if str(flat.get("dynamo_config.dynamo_backend", "no")).lower() != "inductor":
        return
    mode = flat.get("dynamo_config.dynamo_mode", "default")
    result.training.setdefault("compile", True if mode == "default" else mode)


def mesh_keys(accelerate: Values) -> Section:
    """Engine keys of FSDP on a mesh of replicas and shards (parallelism_config.py)."""
    sizes = flat_settings({"parallelism_config": accelerate.get("parallelism_config") or {}})
    prefix = "parallelism_config.parallelism_config_"
    replicas = sizes.get(f"{prefix}dp_replicate_size", 1)
    shards = sizes.get(f"{prefix}dp_shard_size", 1)
    if not isinstance(replicas, int) or not isinstance(shards, int) or replicas <= 1:
        return {}
    return {"sharding_strategy": "hybrid_shard", "hybrid_shard_size": shards}
