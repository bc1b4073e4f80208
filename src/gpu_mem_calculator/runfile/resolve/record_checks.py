"""What cannot be combined with a module's record: one sentence for each problem."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...run.engine import Engine
from ...run.engine_row import SHARD_UNITS
from ...run.record import ARITHMETICS, ModuleRecord, arithmetic
from ...training.engines import engine_row
from ..config import TrainingConfig
from ..text.errors import quoted
from .hardware import Hardware

RECORD_AGAIN = "record it again"
NOT_A_MODULES = "knows a model's own attention, not a module's; use 'full'"
SELECTIVE = f"training.activation_checkpointing='selective' {NOT_A_MODULES}"
IN_THE_FUNCTION = ("attention", "lora", "quantization")  # a recorded module's function does these


def recorded_problems(
    given: TrainingConfig,
    training: Mapping[str, Any],
    record: ModuleRecord,
    engine: Engine,
    options: Mapping[str, Any],
) -> Iterator[str]:
    """Problems of a training section with a record, which fixes the batch and the arithmetic.

    `training` has the choices of the section `given`, as fields of `Run`.
    """
    for key, recorded in (("batch_size", record.batch), ("seq_len", record.tokens)):
        value = getattr(given, key)
        if value not in (None, recorded):
            fix = f"leave it out, or {RECORD_AGAIN}"
            yield f"training.{key}={quoted(value)}: the module was recorded with {recorded}; {fix}"
    precision = training["precision"]
    wanted = arithmetic(engine.name, precision, options, bool(given.autocast))
    if not engine.transformers:
        fix = "use deepspeed, fsdp or pytorch_ddp"
        yield f"engine.type={engine.name!r} runs its own layers, not a module; {fix}"
    elif wanted != record.arithmetic:
        runs = f"training.precision={precision!r} is {ARITHMETICS[wanted]} under {engine.title}"
        recorded_in = f"the module was recorded in {ARITHMETICS[record.arithmetic]}"
        yield f"{runs}, {recorded_in}; {RECORD_AGAIN}"
    if training["recompute"] == "selective":
        yield SELECTIVE
    yield from _not_trained(record, engine, options)
    for key in IN_THE_FUNCTION:
        if getattr(given, key) not in (None, "none"):
            fix = f"do it in the function, and {RECORD_AGAIN}"
            yield f"training.{key} is not done to a module; {fix}"


def _not_trained(record: ModuleRecord, engine: Engine, options: Mapping[str, Any]) -> Iterator[str]:
    """Unused and frozen parameters, where an engine does not treat them like the trained ones.

    ZeRO 1 to 3 put unused parameters into the same flat buffers; torch allocates neither a gradient
    nor a state for them, and DDP stops (2.11 csrc/distributed/c10d/reducer.cpp).
    """
    row = engine_row(engine.name)
    stage = options["zero_stage"] if row.zero_hooks else 0
    if record.unused and not stage:
        yield (
            f"{record.unused[0]} is trained and not in the loss, so that it has no gradient, "
            f"which is not modelled under {engine.title} without ZeRO 1 to 3; freeze it "
            f"(requires_grad=False) or take it out of the module, and {RECORD_AGAIN}"
        )
    if record.frozen and (row.ranks == SHARD_UNITS or stage == 3):
        why = "an estimate from a record shards what is trained alone: trace the function"
        yield f"{record.frozen[0][0]} is frozen, and {engine.title} shards it; {why}"


def card_problems(record: ModuleRecord, hardware: Hardware) -> Iterator[str]:
    """A card with another compute capability, for which torch chooses other kernels."""
    if hardware.compute_capability != record.compute_capability:
        card = f"hardware.gpu has compute capability {hardware.compute_capability}"
        recorded_for = f"the module was recorded for {record.compute_capability}"
        yield f"{card}, {recorded_for}; {RECORD_AGAIN}"
