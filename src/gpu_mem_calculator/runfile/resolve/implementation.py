"""`model.implementation`: the project whose modelling code runs the layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ...models.arch.arch import TRANSFORMERS, Arch
from ...run.engine import Engine
from ...run.recompute import SELECTIVE
from ...training.engines import engine_row
from ...training.losses import DEFAULT
from ..config import RunFile
from ..read import given_keys
from ..text.errors import InputError, quoted

if TYPE_CHECKING:
    from ...pytorch.modelling.others.implementations import Implementation

MEGATRON = "megatron"


def in_implementation(arch: Arch, file: RunFile, engine: Engine, seq: int) -> Arch:
    """The model in the code that `model.implementation` names; raises where that cannot be."""
    name = file.model.implementation
    if name is None:
        return arch
    from ...pytorch.modelling.others.implementations import IMPLEMENTATIONS, implemented

    own = MEGATRON if engine_row(engine.name).megatron else TRANSFORMERS
    if name == own:
        return arch
    what = f"model.implementation={name!r}"
    if name not in IMPLEMENTATIONS:
        raise InputError(f"{what}: {engine.title} runs {own} code; leave it out")
    row = IMPLEMENTATIONS[name]
    problems = list(_problems(arch, file, engine, row, what))
    if problems:
        raise InputError(problems)
    return implemented(arch, name, seq)


def implementation_options(file: RunFile) -> dict[str, Any]:
    """The engine's options that an implementation fixes."""
    if file.model.implementation is None:
        return {}
    from ...pytorch.modelling.others.implementations import IMPLEMENTATIONS

    row = IMPLEMENTATIONS.get(file.model.implementation)
    return {} if row is None else dict(row.options)


def _problems(
    arch: Arch, file: RunFile, engine: Engine, row: Implementation, what: str
) -> Iterator[str]:
    training = file.training
    if engine.name not in row.engines:
        fix = f"use engine {' or '.join(row.engines)}, or leave it out"
        yield f"{what} is not modelled with {engine.title}; {fix}"
    if arch.family not in row.families:
        fix = f"use a model of {' or '.join(row.families)}, or leave it out"
        yield f"{what} with {arch.family} is not modelled; {fix}"
    elif arch.tied:
        fix = "use a model with an output layer of its own, or leave it out"
        yield f"{what} with tied embeddings is not modelled; {fix}"
    given = given_keys(file.engine)
    for key, value in row.options:
        if given.get(key, value) != value:
            yield f"engine.{key}={quoted(given[key])} has no effect with {what}; leave it out"
    if training.activation_checkpointing in (1, SELECTIVE):
        yield f"training.activation_checkpointing='selective': {what} has no such switch; use full"
    if training.recompute is not None and all(engine_row(name).megatron for name in row.engines):
        yield f"training.recompute: {what} has no policies; use training.activation_checkpointing"
    if training.lora is not None:
        yield f"{what} has no LoRA; leave training.lora or model.implementation out"
    if training.liger or training.label_smoothing or training.loss not in (None, DEFAULT):
        why = "runs its own layers and its own loss; leave training.liger"
        yield f"{what} {why}, training.loss and training.label_smoothing out"
    if training.attention not in (None, "sdpa"):
        yield f"{what} calls scaled_dot_product_attention; set training.attention to sdpa"
