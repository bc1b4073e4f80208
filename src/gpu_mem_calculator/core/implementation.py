"""`model.implementation`: the project whose modelling code runs the layers."""

from __future__ import annotations

from collections.abc import Iterator

from ..model.arch import Arch
from ..modelling.implementations import IMPLEMENTATIONS, TRANSFORMERS, Implementation, implemented
from ..run.engine import Engine
from .errors import InputError
from .models import RunFile

MEGATRON = "megatron"


def in_implementation(arch: Arch, file: RunFile, engine: Engine) -> Arch:
    """The model in the code that `model.implementation` names; raises where that cannot be."""
    name = file.model.implementation
    own = MEGATRON if engine.name.startswith(MEGATRON) else TRANSFORMERS
    if name is None or name == own:
        return arch
    what = f"model.implementation={name!r}"
    if name not in IMPLEMENTATIONS:
        raise InputError(f"{what}: {engine.title} runs {own} code; leave it out")
    row = IMPLEMENTATIONS[name]
    problems = list(_problems(arch, file, engine, row, what))
    if problems:
        raise InputError(problems)
    return implemented(arch, name, file.training.seq_len or arch.max_seq_len)


def _problems(
    arch: Arch, file: RunFile, engine: Engine, row: Implementation, what: str
) -> Iterator[str]:
    training = file.training
    if engine.name not in row.engines:
        fix = f"use engine {' or '.join(row.engines)}, or leave it out"
        yield f"{what} is not modelled with {engine.title}; {fix}"
    if arch.family not in row.families or arch.tied:
        tied = " with tied embeddings" if arch.family in row.families else ""
        fix = f"it is modelled for {', '.join(row.families)}; leave it out"
        yield f"{what}: {arch.family}{tied} is not modelled; {fix}"
    if training.lora is not None:
        yield f"{what} has no LoRA; leave training.lora or model.implementation out"
    if training.liger or training.loss not in (None, "full"):
        why = "runs its own layers and its own loss"
        yield f"{what} {why}; leave training.liger and training.loss out"
    if training.attention not in (None, "sdpa"):
        yield f"{what} calls scaled_dot_product_attention; set training.attention to sdpa"
