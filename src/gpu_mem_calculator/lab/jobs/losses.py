"""The loss of a job and Liger's kernels, in the place of transformers' own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from importlib import import_module
from types import MethodType, ModuleType
from typing import Any

from ...pytorch.modelling.huggingface.liger import KERNELS
from ...run.run import Run
from ...runfile.text.errors import InputError
from ...tools.translation.arguments import tables
from ...training.losses import DEFAULT, LOSSES
from .job import Job
from .model import autocast_dtype, loss_of

PACKAGES: dict[str, str] = tables(__file__)["packages"]
IGNORED = -100  # the label of a token without one


def import_kernels(name: str) -> ModuleType:
    """Import a module of a package with kernels; raises a sentence that says how to install it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        package = PACKAGES[name.partition(".")[0]]
        missing = error.name or name
        fix = f"pip install {package}" if missing == name.partition(".")[0] else f"with {missing}"
        raise InputError(f"this needs {package}, which is not installed: {fix}") from None


def use_kernels(job: Job, model: Any) -> None:
    """Give a model the kernels and the loss of the run."""
    run = job.resolved.run
    if job.world.stand_ins is not None:
        job.world.stand_ins(model, run)
        return
    if run.liger:
        patches = import_kernels("liger_kernel.transformers.monkey_patch")
        chosen = {name: name in run.liger for name in KERNELS}
        patches._apply_liger_kernel_to_instance(model=model, **chosen)
    use_loss(model, run)


def use_loss(model: Any, run: Run) -> None:
    """Give a model the loss of the run, where neither transformers nor Liger has given it."""
    if LOSSES[run.loss].job:
        globals()[LOSSES[run.loss].job](model, run)


def step_loss(job: Job, runner: Any, arguments: Any, cast: AbstractContextManager[Any]) -> Any:
    """Run a model forward under autocast, and return the loss."""
    if job.resolved.run.label_smoothing:
        return _smoothed_loss(job, runner, arguments, cast)
    with cast:
        return loss_of(runner(**arguments) if isinstance(arguments, dict) else runner(*arguments))


def _smoothed_loss(job: Job, runner: Any, arguments: Any, cast: AbstractContextManager[Any]) -> Any:
    """As transformers' Trainer: logits without labels, in fp32 where accelerate autocasts."""
    from transformers.trainer_pt_utils import LabelSmoother

    with cast:
        outputs = runner(input_ids=arguments["input_ids"])
    if autocast_dtype(job) is not None:
        outputs = {"logits": outputs["logits"].float()}
    smooth = LabelSmoother(epsilon=job.resolved.run.label_smoothing)
    return smooth(outputs, arguments["labels"], shift_labels=True)


def refuse_with_function(job: Job) -> None:
    """Raise a sentence where a user's module is to run with another loss than its own."""
    run = job.resolved.run
    other = run.loss != DEFAULT
    chosen = {"loss": other, "liger": run.liger, "label_smoothing": run.label_smoothing}
    _refuse(job, "loss", chosen)


def refuse_without_transformers(job: Job) -> None:
    """Raise a sentence where a user's module is to do what only a model of transformers does."""
    run = job.resolved.run
    _refuse(job, "forward", {"use_cache": run.use_cache, "evaluation": run.evaluation})


def _refuse(job: Job, own: str, chosen: dict[str, Any]) -> None:
    for key in (key for key, value in chosen.items() if value and job.build is not None):
        raise InputError(f"training.{key}: a user's module has its own {own}; leave it out")


def next_labels(labels: Any) -> Any:
    """Each token's label: the next token, or none for the last, as transformers shifts them
    (loss/loss_utils.py ForCausalLMLoss).
    """
    from torch.nn.functional import pad

    return pad(labels, (0, 1), value=IGNORED)[..., 1:].contiguous().view(-1)


def logits_loss(
    cross_entropy: Callable[[Any, Any], Any], logits: Any, labels: Any, vocab_size: int, **_: Any
) -> Any:
    """A model's loss function around a cross entropy of logits and labels."""
    return cross_entropy(logits.view(-1, vocab_size), next_labels(labels))


def plain_loss(model: Any, run: Run) -> None:
    """torch's cross entropy of logits that are not upcast."""
    from torch.nn.functional import cross_entropy

    model.loss_function = partial(logits_loss, cross_entropy)


def flash_loss(model: Any, run: Run, *, upcast: bool = True, in_place: bool = False) -> None:
    """flash-attn's cross entropy of fp32 logits, as Axolotl puts it into transformers, or of logits
    as they are.
    """
    flash = import_kernels("flash_attn.ops.triton.cross_entropy").cross_entropy_loss

    def cross_entropy(logits: Any, labels: Any) -> Any:
        read = logits.float() if upcast else logits
        losses, _ = flash(read, labels, ignore_index=IGNORED, inplace_backward=in_place)
        return losses.sum() / (labels != IGNORED).sum()

    model.loss_function = partial(logits_loss, cross_entropy)


flash_loss_in_place = partial(flash_loss, in_place=True)
flash_loss_no_upcast = partial(flash_loss, upcast=False)


def chunked_loss(model: Any, run: Run) -> None:
    """TRL's output layer, which computes the loss in tiles; the model is always called for it."""
    utils: Any = import_kernels("trl.trainer.utils")
    utils._CHUNKED_LOGPROB_CHUNK_SIZE = run.loss_chunk
    utils.add_fused_lm_head(model)
    scored = partial(model.forward, fused_lm_head=True)

    def forward(*args: Any, labels: Any = None, **kwargs: Any) -> Any:
        if run.labelled is not None and labels is not None:
            labels = labels.clone()
            labels[:, : -int(run.labelled)] = IGNORED
        return scored(*args, labels=labels, **kwargs)

    model.forward = forward


def reward_loss(model: Any, run: Run) -> None:
    """The loss of TRL's RewardTrainer on a model with a score: chosen sequences come first."""
    from torch.nn.functional import logsigmoid

    score = model.forward

    def forward(*args: Any, labels: Any = None, **kwargs: Any) -> Any:
        scores = score(*args, use_cache=False, **kwargs).logits
        chosen, rejected = scores.squeeze(-1).chunk(2)
        return {"loss": -logsigmoid(chosen - rejected).mean()}

    model.forward = forward


def cut_loss(model: Any, run: Run) -> None:
    """cut-cross-entropy on the last hidden states, which it takes in 16 bits."""
    import torch

    function = import_kernels("cut_cross_entropy").linear_cross_entropy
    softcap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)

    def forward(self: Any, *args: Any, labels: Any = None, **kwargs: Any) -> Any:
        hidden = self.base_model(*args, **kwargs).last_hidden_state
        if torch.is_autocast_enabled(hidden.device.type):
            hidden = hidden.to(torch.get_autocast_dtype(hidden.device.type))
        weight = self.get_output_embeddings().weight
        return {"loss": function(hidden, weight, labels, softcap=softcap, shift=True)}

    model.forward = MethodType(forward, model)
