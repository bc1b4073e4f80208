"""How the loss is computed, and which of Liger's kernels run: the keys of a run file, resolved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...models.arch.blocks import Attention, Mlp
from ...models.arch.score import SCORED
from ...pytorch.modelling.huggingface.liger import CROSS_ENTROPY, FUSED, KERNELS, LIGER, PLAIN
from ...run.engine import Engine
from ...run.run import Run
from ..config import TrainingConfig
from ..text.errors import InputError, nearest, quoted

CHUNK = 32_768  # trl 1.16.0 trainer/utils.py _CHUNKED_LOGPROB_CHUNK_SIZE
LIGER_LOSSES = {"liger": CROSS_ENTROPY, "liger_fused": FUSED}  # loss -> Liger's kernel
REWARD = "reward"  # of pairs of sequences, by a model with a score
MEGATRON = ("te_fused", "megatron_fused")
# Losses that compute the logits themselves, from the output layer's weight, without gathering it
# under ZeRO-3. TRL's gathers it (trl 1.16.0 trainer/utils.py maybe_gather_lm_head_ctx).
READS_WEIGHT = ("liger_fused", "cut")
SAME_AS_FULL = ("full", "full_upcast")  # transformers' own loss upcasts the logits


def loss_choices(config: TrainingConfig, family: str) -> dict[str, Any]:
    """The run's loss and kernels; raises a sentence for each contradiction."""
    kernels = _kernels(config, family)
    by_kernel = [name for name, kernel in LIGER_LOSSES.items() if kernel in kernels]
    usual = "full" if config.generation is None else "chunked"
    loss: str = config.loss or (by_kernel[0] if by_kernel else usual)
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
        "loss": "full" if loss in SAME_AS_FULL else loss,
        "loss_chunk": (config.loss_chunk_size or CHUNK) if loss == "chunked" else 0,
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
        own = LIGER_LOSSES.values() if config.loss == "chunked" else ()  # TRL leaves them out
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
    if config.loss_chunk_size and loss != "chunked":
        size = config.loss_chunk_size
        yield f"training.loss_chunk_size={size} needs loss 'chunked'; leave it out"
    if config.labelled_tokens and loss != "chunked":
        tokens = config.labelled_tokens
        yield f"training.labelled_tokens={tokens} needs loss 'chunked', which skips other tokens"
    if config.label_smoothing and loss not in SAME_AS_FULL:
        why = "is computed from all logits by transformers' LabelSmoother; use loss 'full'"
        yield f"training.label_smoothing={config.label_smoothing} with loss {loss!r} {why}"


def loss_problems(run: Run, config: TrainingConfig, engine: Engine) -> Iterator[str]:
    """A sentence for each loss that an engine, a precision or a model does not have."""
    keys = ("liger", "label_smoothing", "loss_chunk_size", "labelled_tokens")
    given = [key for key in keys if getattr(config, key)]
    if not engine.transformers:
        for key in given:
            value = quoted(getattr(config, key))
            fix = "leave it out, or use engine pytorch_ddp, fsdp or deepspeed"
            yield f"training.{key}={value}: {engine.title} does not run transformers' code; {fix}"
        if config.loss not in (None, *engine.losses):
            fix = f"choose from {', '.join(map(repr, engine.losses))}"
            yield f"training.loss={config.loss!r}: {engine.title} does not have it; {fix}"
        return
    if run.record is not None and (given or config.loss not in (None, "full")):
        key = (*given, "loss")[0]
        value = quoted(getattr(config, key))
        yield f"training.{key}={value}: a recorded module has its own loss; leave it out"
    if run.liger and run.arch.family == PLAIN and not _like_llama(run):
        fix = "set gated_mlp=true and normalization='rmsnorm', or give a config.json"
        yield f"training.liger: for plain numbers Liger needs a model like Llama; {fix}"
    if run.labelled is not None and run.labelled >= run.seq:
        fix = f"use at most {int(run.seq) - 1}: the first token of a sequence has none"
        yield f"training.labelled_tokens={run.labelled} is more than a sequence has; {fix}"
    if run.loss == REWARD:
        yield from _reward_problems(run)
    if run.loss in MEGATRON:
        fix = f"{engine.title} does not have it; use 'liger_fused' or 'cut'"
        yield f"training.loss={run.loss!r} is Megatron's, and {fix}"
    if run.precision == "fp32" and run.loss.endswith("_no_upcast"):
        same = run.loss.removesuffix("_no_upcast")
        yield f"training.loss={run.loss!r} is {same!r} in precision 'fp32'; use {same!r}"
    if run.precision == "fp32" and run.loss == "cut":
        yield "training.loss='cut' has no fp32 kernel; use 'liger_fused', or precision 'bf16_mixed'"
    if run.loss == "cut" and run.arch.logit_scale is not None:
        family = run.arch.family
        yield f"training.loss='cut' does not scale logits as {family} does; use 'chunked'"
    if (run.liger or run.loss != "full" or run.label_smoothing) and int(run.mesh.pp) > 1:
        what = "loss" if run.loss != "full" else "liger" if run.liger else "label_smoothing"
        fix = "leave it out, or set parallelism.pipeline_parallel_size to 1"
        yield f"training.{what} is not modelled with pipeline parallelism; {fix}"
    if run.loss in READS_WEIGHT and run.options.get("zero_stage") == 3:
        why = "is not modelled here under ZeRO-3, which gathers the output layer's weight for it"
        yield f"training.loss={run.loss!r} {why}; use loss 'full', or engine.zero_stage 2"


def _reward_problems(run: Run) -> Iterator[str]:
    """What a model with a score needs."""
    if run.arch.family not in SCORED:
        family = run.arch.family
        yield f"training.loss='reward': {family} has no sequence classifier that is modelled"
    if run.batch % 2:
        fix = "a chosen and a rejected one for each pair; use an even number"
        yield f"training.batch_size={run.batch} with loss 'reward' counts sequences, {fix}"


def _like_llama(run: Run) -> bool:
    """Whether every layer has what Llama's has: RMS norms, rotary positions and a gated MLP."""
    return all(
        isinstance(layer.mixer, Attention)
        and layer.mixer.rotary_dim > 0
        and isinstance(layer.mlp, Mlp)
        and layer.mlp.gated
        and all(norm.impl == "rms" for _, norm in layer.norms)
        for layer, _, _ in run.arch.runs
    )
