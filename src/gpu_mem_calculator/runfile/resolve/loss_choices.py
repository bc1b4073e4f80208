"""How the loss is computed, and which of Liger's kernels run: the keys of a run file, resolved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...pytorch.modelling.huggingface.liger import KERNELS, LIGER
from ...run.engine import Engine
from ...run.run import Run
from ...training.losses import DEFAULT, LOSSES, PER_TOKEN, losses_of
from ..config import TrainingConfig
from ..text.errors import InputError, nearest, quoted

CHUNK = 32_768  # trl 1.16.0 trainer/utils.py _CHUNKED_LOGPROB_CHUNK_SIZE
LIGER_LOSSES = {name: row.needs_kernel for name, row in LOSSES.items() if row.needs_kernel}


def loss_choices(config: TrainingConfig, family: str) -> dict[str, Any]:
    """The run's loss and kernels; raises a sentence for each contradiction."""
    kernels = _kernels(config, family)
    by_kernel = [name for name, kernel in LIGER_LOSSES.items() if kernel in kernels]
    usual = DEFAULT if config.generation is None else PER_TOKEN
    loss: str = config.loss or (by_kernel[0] if by_kernel else usual)
    row = LOSSES[loss]
    needed = LIGER_LOSSES.get(loss)
    problems = list(_contradictions(config, loss, kernels))
    if needed is not None and family not in LIGER:
        problems.append(f"training.loss={loss!r}: {_no_liger(family)}")
    elif needed is not None and needed not in LIGER[family].kernels:
        problems.append(f"training.loss={loss!r}: {_not_for(family, needed)}")
    if problems:
        raise InputError(problems)
    others = tuple(name for name in kernels if name not in LIGER_LOSSES.values())
    return {
        "loss": row.same_as or loss,
        "loss_chunk": (config.loss_chunk_size or CHUNK) if row.per_token else 0,
        "labelled": config.labelled_tokens or _completion(config),
        "label_smoothing": config.label_smoothing or 0.0,
        "liger": (*others, needed) if needed is not None else others,
    }


def _completion(config: TrainingConfig) -> int | None:
    """Tokens of a completion that the policy generates; None where there is none."""
    return None if config.generation is None else config.generation.new_tokens


def _kernels(config: TrainingConfig, family: str) -> tuple[str, ...]:
    """The names of Liger's kernels that training.liger asks for."""
    if not config.liger:
        return ()
    if isinstance(config.liger, list):
        unknown = [name for name in config.liger if name not in KERNELS]
        if unknown:
            hint = nearest(unknown[0], KERNELS) or f"; choose {', '.join(KERNELS)}"
            raise InputError(f"training.liger: {quoted(unknown[0])} is not a kernel{hint}")
    if family not in LIGER:
        raise InputError(f"training.liger={quoted(config.liger)}: {_no_liger(family)}")
    if config.liger is True:
        own = LIGER_LOSSES.values() if config.loss == PER_TOKEN else ()  # TRL leaves them out
        return tuple(name for name in LIGER[family].default if name not in own)
    missing = [name for name in config.liger if name not in LIGER[family].kernels]
    if missing:
        raise InputError(f"training.liger: {_not_for(family, missing[0])}")
    return tuple(dict.fromkeys(config.liger))


def _no_liger(family: str) -> str:
    return f"Liger has no kernels for {family} models, or they are not modelled; leave it out"


def _not_for(family: str, kernel: str) -> str:
    has = ", ".join(LIGER[family].kernels)
    return f"Liger 0.8.5 has no working {kernel} for {family}; choose from {has}"


def _contradictions(config: TrainingConfig, loss: str, kernels: tuple[str, ...]) -> Iterator[str]:
    own = [name for name in kernels if name in LIGER_LOSSES.values()]
    if len(own) == 2:
        yield f"training.liger: {own[0]} and {own[1]} both compute the loss; leave one out"
    elif own and own[0] != LIGER_LOSSES.get(loss):
        rest = [name for name in kernels if name not in own]
        fix = f"leave loss out, or list the other kernels: {', '.join(rest)}"
        yield f"training.loss={loss!r} contradicts training.liger with {own[0]}; {fix}"
    row = LOSSES[loss]
    if config.loss_chunk_size and not row.per_token:
        size = config.loss_chunk_size
        yield f"training.loss_chunk_size={size} needs loss {PER_TOKEN!r}; leave it out"
    if config.labelled_tokens and not row.per_token:
        what = f"training.labelled_tokens={config.labelled_tokens}"
        yield f"{what} needs loss {PER_TOKEN!r}, which skips other tokens"
    if config.label_smoothing and (row.same_as or loss) != DEFAULT:
        why = f"is computed from all logits by transformers' LabelSmoother; use loss {DEFAULT!r}"
        yield f"training.label_smoothing={config.label_smoothing} with loss {loss!r} {why}"


def loss_key_problems(run: Run, config: TrainingConfig, engine: Engine) -> Iterator[str]:
    """A sentence for each key of the loss and of Liger's kernels that a run cannot have."""
    keys = ("liger", "label_smoothing", "loss_chunk_size", "labelled_tokens")
    given = [key for key in keys if getattr(config, key)]
    if not engine.transformers:
        for key in given:
            value = quoted(getattr(config, key))
            fix = "leave it out, or use engine pytorch_ddp, fsdp or deepspeed"
            yield f"training.{key}={value}: {engine.title} does not run transformers' code; {fix}"
        if config.loss is not None and LOSSES[config.loss].same_as:
            fix = f"choose from {', '.join(map(repr, sorted(losses_of(engine))))}"
            yield f"training.loss={config.loss!r}: {engine.title} does not have it; {fix}"
        return
    if run.record is not None and (given or config.loss not in (None, DEFAULT)):
        key = (*given, "loss")[0]
        value = quoted(getattr(config, key))
        yield f"training.{key}={value}: a recorded module has its own loss; leave it out"
