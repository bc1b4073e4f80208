"""What a module's record does not go with, a sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..run.engine import Engine
from ..run.record import WORDS, ModuleRecord, arithmetic
from .hardware import Hardware
from .models import TrainingConfig

AGAIN = "record it again"
SELECTIVE = ("training.activation_checkpointing='selective' knows a model's own attention, not a "
             "module's; use 'full'")  # fmt: skip
IN_THE_FUNCTION = ("attention", "lora", "quantization")  # what is done to a model that is known


def recorded_problems(
    given: TrainingConfig, training: Mapping[str, Any], record: ModuleRecord, engine: Engine,
    options: Mapping[str, Any],
) -> Iterator[str]:  # fmt: skip
    """A record has its own batch, and is of one arithmetic; `training` is what `given` means."""
    for key, own in (("batch_size", record.batch), ("seq_len", record.tokens)):
        value = getattr(given, key)
        if value not in (None, own):
            yield (f"training.{key}={value!r}: the module was recorded with {own}; leave it out, "
                   f"or {AGAIN}")  # fmt: skip
    precision = training["precision"]
    wanted = arithmetic(engine.name, precision, options, training["autocast"])
    if not engine.transformers:
        yield (f"engine.type={engine.name!r} runs its own layers, not a module; use deepspeed, "
               "fsdp or pytorch_ddp")  # fmt: skip
    elif wanted != record.arithmetic:
        yield (f"training.precision={precision!r} is {WORDS[wanted]} under {engine.title}, the "
               f"module was recorded in {WORDS[record.arithmetic]}; {AGAIN}")  # fmt: skip
    if training["recompute"] == "selective":
        yield SELECTIVE
    yield from _not_trained(record, engine, options)
    for key in IN_THE_FUNCTION:
        if getattr(given, key) not in (None, "none"):
            yield f"training.{key} is not done to a module; do it in the function, and {AGAIN}"


def _not_trained(record: ModuleRecord, engine: Engine, options: Mapping[str, Any]) -> Iterator[str]:
    """Parameters that no gradient reaches, where an engine does not hold them as all others.

    ZeRO 1 to 3 put what is unused into the flat buffers of the rest; torch makes neither a gradient
    nor a state of it, and DDP stops (2.11 csrc/distributed/c10d/reducer.cpp).
    """
    stage = options["zero_stage"] if engine.name == "deepspeed" else 0
    if record.unused and not stage:
        yield (
            f"{record.unused[0]} is trained and not in the loss, so that it has no gradient, "
            f"which is not modelled under {engine.title} without ZeRO 1 to 3; freeze it "
            f"(requires_grad=False) or take it out of the module, and {AGAIN}"
        )
    if record.frozen and (engine.name == "fsdp" or stage == 3):
        yield (
            f"{record.frozen[0][0]} is frozen, and {engine.title} shards it; an estimate from a "
            "record shards what is trained alone: trace the function"
        )


def card_problems(record: ModuleRecord, hardware: Hardware) -> Iterator[str]:
    """Kernels are chosen by the card."""
    if hardware.compute_capability != record.compute_capability:
        yield (f"hardware.gpu has compute capability {hardware.compute_capability}, the module was "
               f"recorded for {record.compute_capability}; {AGAIN}")  # fmt: skip
