"""The losses: one row each, with all that is true of a loss wherever it runs.

Which losses an engine has follows from the kernels that it runs (`Engine.loss_kernels`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ..pytorch.modelling.huggingface import fused_losses, losses
from ..pytorch.modelling.huggingface.liger import CROSS_ENTROPY, FUSED
from ..pytorch.modelling.megatron import losses as megatron
from ..run.problems import Problem

if TYPE_CHECKING:
    from ..pytorch.modelling.huggingface.losses import LossKernel
    from ..run.engine import Engine
    from ..run.run import Run

TRANSFORMERS, MEGATRON = "transformers", "megatron"  # whose code runs a kernel
LOSS, PRECISION, ENGINE = "training.loss", "training.precision", "engine.type"
DEFAULT = "full"  # of a run file that names no loss: the framework's own


def accepts_all(run: Run) -> Iterator[str]:
    """For a loss without rules of its own."""
    yield from ()


class Loss(Struct, frozen=True, kw_only=True):
    """A loss.

    - title: in words; "" for the framework's own
    - kernels: with their sources, by the code that runs them
    - logit_passes: how often a step computes all logits
    - logit_bytes: read and written for each logit by Megatron's kernel, forward and backward
    - evaluates: an evaluation between steps can be traced with it; planned: `plan` tries it
    - same_as: the loss whose other name this is
    - needs_kernel: Liger's kernel that computes it; package: what must be installed
    - per_token: it gives the log-probability of each token, of those with a label, in tiles
    - gathers_weight: under ZeRO-3 it gathers the output layer's weight that it reads
    - scores: it is of sequences' scores, which the model has in the place of logits
    - refuses: a sentence for each run that it is not for
    - job: the function of `lab.jobs.losses` that gives it to a measured model; "" where the
      framework or Liger does; no_job: why none does
    - stand_in: the function of `lab.trace.stand_ins` that allocates as it does on fake tensors; ""
      where torch's own operations do
    """

    title: str
    kernels: Mapping[str, LossKernel]
    logit_passes: int
    logit_bytes: tuple[int, int] | None = None
    evaluates: bool
    planned: bool
    same_as: str = ""
    needs_kernel: str = ""
    package: str = ""
    per_token: bool = False
    gathers_weight: bool = False
    scores: bool = False
    refuses: Callable[[Run], Iterator[str]] = accepts_all
    job: str = ""
    no_job: str = ""
    stand_in: str = ""


def _upcast_needed(same: str, run: Run) -> Iterator[str]:
    """fp32 logits are not upcast: the loss is `same`."""
    if run.precision == "fp32":
        text = f"is {same!r} in precision 'fp32'; use {same!r}"
        yield Problem(f"training.loss={run.loss!r} {text}", LOSS, PRECISION)


def _cut_problems(run: Run) -> Iterator[str]:
    """cut-cross-entropy's kernels take 16 bits, and cap logits but do not scale them."""
    if run.precision == "fp32":
        fix = "use 'liger_fused', or precision 'bf16_mixed'"
        yield Problem(f"training.loss='cut' has no fp32 kernel; {fix}", LOSS, PRECISION)
    if run.arch.logit_scale is not None:
        why = f"does not scale logits as {run.arch.family} does"
        yield Problem(f"training.loss='cut' {why}; use 'chunked'", LOSS)


def _reward_problems(run: Run) -> Iterator[str]:
    """What a model with a score needs."""
    from ..models.arch.variants import SCORED

    if run.arch.family not in SCORED:
        why = f"{run.arch.family} has no sequence classifier that is modelled"
        yield Problem(f"training.loss='reward': {why}", LOSS)
    if run.batch % 2:
        fix = "a chosen and a rejected one for each pair; use an even number"
        text = f"training.batch_size={run.batch} with loss 'reward' counts sequences, {fix}"
        yield Problem(text, "training.batch_size", LOSS)


# logit_bytes are counted operation by operation. full: Megatron makes fp32 logits (6 bytes), takes
# the maximum (4), subtracts it (8), exponentiates (8), sums (4) and divides (8); backward
# multiplies the softmax (8) and casts it (6) after a gather and a subtraction of rows.
# megatron_fused: two compiled functions forward, one backward. te_fused: one kernel reads the
# logits twice and writes their gradient, backward scales it.
_FULL = Loss(
    title="",
    kernels={TRANSFORMERS: losses.full, MEGATRON: megatron.full},
    logit_passes=1,
    logit_bytes=(38, 14),
    evaluates=True,
    planned=True,
)
_FLASH = Loss(
    title="flash-attn's loss",
    kernels={TRANSFORMERS: losses.flash_fused},
    logit_passes=1,
    evaluates=False,
    planned=False,
    package="flash-attn",
    job="flash_loss",
    stand_in="flash",
)
LOSSES: Mapping[str, Loss] = {
    "full": _FULL,
    "full_upcast": replace(
        _FULL, kernels={TRANSFORMERS: losses.full}, same_as="full", planned=False
    ),
    "full_no_upcast": Loss(
        title="loss without upcast",
        kernels={TRANSFORMERS: losses.full_no_upcast},
        logit_passes=1,
        evaluates=True,
        planned=False,
        refuses=partial(_upcast_needed, "full"),
        job="plain_loss",
    ),
    "te_fused": Loss(
        title="Transformer Engine's loss",
        kernels={MEGATRON: megatron.transformer_engine},
        logit_passes=1,
        logit_bytes=(8, 8),
        evaluates=False,
        planned=True,
    ),
    "megatron_fused": Loss(
        title="Megatron's fused loss",
        kernels={MEGATRON: megatron.fused},
        logit_passes=1,
        logit_bytes=(18, 14),
        evaluates=False,
        planned=True,
    ),
    "flash_fused": _FLASH,
    "flash_fused_inplace": replace(
        _FLASH,
        title="flash-attn's loss in place",
        kernels={TRANSFORMERS: losses.flash_fused_in_place},
        job="flash_loss_in_place",
        stand_in="flash_in_place",
    ),
    "flash_fused_no_upcast": replace(
        _FLASH,
        title="flash-attn's loss without upcast",
        kernels={TRANSFORMERS: losses.flash_fused_no_upcast},
        refuses=partial(_upcast_needed, "flash_fused"),
        job="flash_loss_no_upcast",
        stand_in="flash_no_upcast",
    ),
    "chunked": Loss(
        title="chunked loss",
        kernels={TRANSFORMERS: fused_losses.chunked},
        logit_passes=1,
        evaluates=False,
        planned=False,
        package="trl",
        per_token=True,
        gathers_weight=True,  # trl 1.16.0 trainer/utils.py maybe_gather_lm_head_ctx
        job="chunked_loss",
        stand_in="chunked",
    ),
    "liger": Loss(
        title="Liger's loss",
        kernels={TRANSFORMERS: losses.liger},
        logit_passes=1,
        evaluates=True,
        planned=False,
        needs_kernel=CROSS_ENTROPY,
        package="liger-kernel",
        stand_in="liger",
    ),
    "liger_fused": Loss(
        title="Liger's fused loss",
        kernels={TRANSFORMERS: fused_losses.liger_fused},
        logit_passes=1,
        evaluates=True,
        planned=True,
        needs_kernel=FUSED,
        package="liger-kernel",
        stand_in="liger_fused",
    ),
    "cut": Loss(
        title="cut cross entropy",
        kernels={TRANSFORMERS: fused_losses.cut},
        logit_passes=2,
        evaluates=False,
        planned=True,
        package="cut-cross-entropy",
        refuses=_cut_problems,
        job="cut_loss",
        stand_in="cut",
    ),
    "reward": Loss(
        title="a reward model's loss",
        kernels={TRANSFORMERS: losses.reward},
        logit_passes=1,
        evaluates=False,
        planned=False,
        scores=True,
        refuses=_reward_problems,
        job="reward_loss",
    ),
}
PER_TOKEN = next(name for name, row in LOSSES.items() if row.per_token)


def kernel(run: Run, code: str) -> LossKernel:
    """The kernel of a run's loss in an engine's code."""
    return LOSSES[run.loss].kernels[code]


def planned_losses(code: str) -> tuple[str, ...]:
    """The losses that `plan` tries of those with a kernel in an engine's code."""
    return tuple(name for name, row in LOSSES.items() if row.planned and code in row.kernels)


def smaller_losses() -> dict[str, Loss]:
    """Those that are tried where memory is short: they never hold all logits."""
    return {
        name: LOSSES[name]
        for name in planned_losses(TRANSFORMERS)
        if LOSSES[name].kernels[TRANSFORMERS].reads == "weight"
    }


def losses_of(engine: Engine) -> tuple[str, ...]:
    """The losses that an engine has: those whose kernels it runs, or the framework's own alone."""
    if not engine.loss_kernels:
        return (DEFAULT,)
    return tuple(name for name, row in LOSSES.items() if engine.loss_kernels in row.kernels)


def loss_problems(run: Run, engine: Engine) -> Iterator[str]:
    """A sentence for each reason why an engine, a precision or a model does not have a run's loss.

    An engine that does not run transformers has none of Liger's kernels: where there are others
    than the loss, the sentence is about training.liger.
    """
    row, has = LOSSES[run.loss], losses_of(engine)
    if run.loss not in has and not engine.transformers:
        if run.liger in ((), (row.needs_kernel,)):
            fix = f"choose from {', '.join(map(repr, sorted(has)))}"
            text = f"{engine.title} does not have it; {fix}"
            yield Problem(f"training.loss={run.loss!r}: {text}", LOSS, ENGINE)
    elif run.loss not in has:
        fix = f"{engine.title} does not have it; use {' or '.join(map(repr, smaller_losses()))}"
        yield Problem(f"training.loss={run.loss!r} is Megatron's, and {fix}", LOSS, ENGINE)
    else:
        yield from row.refuses(run)
