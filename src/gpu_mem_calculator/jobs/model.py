"""The model a job trains: Hugging Face's own code with random weights, nothing downloaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

from ..core.errors import InputError
from ..core.record_checks import SELECTIVE
from ..run.run import Run
from .job import Job

NO_PROGRAM = ("model: plain numbers describe no program that could be run; give a preset or a "
              "config.json")  # fmt: skip
DTYPES = {"fp32": "float32", "bf16_pure": "bfloat16", "fp16_pure": "float16"}


def import_extra(name: str, extra: str) -> ModuleType:
    """A package that the base install does not have, or the sentence that says how to get it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and not name.startswith(error.name):
            raise
        raise InputError([f"this needs {name.partition('.')[0]}, which is not installed: "
                          f'pip install "gpu-mem-calculator[{extra}]"']) from None  # fmt: skip


def weight_dtype(run: Run) -> Any:
    """The dtype of the weights as the model is made: fp32 where the arithmetic is mixed."""
    import torch

    return getattr(torch, DTYPES.get(run.precision, "float32"))


def autocast_dtype(job: Job) -> Any:
    """The dtype of torch autocast around the forward pass; None where there is none."""
    import torch

    run = job.resolved.run
    if run.autocast or (job.resolved.engine.name == "pytorch_ddp" and "mixed" in run.precision):
        return torch.float16 if run.precision.startswith("fp16") else torch.bfloat16
    return None


def hf_config(job: Job) -> Any:
    """transformers' config object for the run's model."""
    config = job.resolved.model.config
    if config is None:
        raise InputError([NO_PROGRAM])
    found = auto_config(config)
    if job.file.training.attention is not None:  # left out, transformers takes what the model has
        found._attn_implementation = job.file.training.attention
    return found


def auto_config(config: Mapping[str, Any]) -> Any:
    """transformers' config object for a config.json, if it knows that kind of model."""
    transformers = import_extra("transformers", "torch")
    left_out = ("architectures", "auto_map", "quantization_config")
    values = {k: v for k, v in config.items() if k not in left_out}
    if values["model_type"] not in transformers.CONFIG_MAPPING:
        raise InputError(
            [f"model_type={values['model_type']!r} is not part of transformers "
             f"{transformers.__version__}, and remote code is not run; use trace --function with "
             "your own"]
        )  # fmt: skip
    return transformers.AutoConfig.for_model(values.pop("model_type"), **values)


def build(job: Job, device: str) -> Any:
    """The model with random weights on a device ("meta" for none yet), ready to train."""
    import_extra("torch", "torch").manual_seed(0)
    return causal_model(hf_config(job), job.resolved.run, device)


def causal_model(config: Any, run: Run, device: str, **rest: Any) -> Any:
    """A causal model of transformers with random weights, ready to train."""
    torch, transformers = import_extra("torch", "torch"), import_extra("transformers", "torch")
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=weight_dtype(run), **rest
        )
    model.train()
    model.config.use_cache = False
    return model


def tokens(job: Job) -> Any:
    """A micro-batch of token ids, every sequence full."""
    import torch

    run = job.resolved.run
    shape = (int(run.batch), int(run.seq))
    return torch.randint(0, run.arch.vocab, shape, device=job.world.device)


def inputs(job: Job, batch: Any) -> Any:
    """What a model is given: the batch it came with, or token ids that are their own labels."""
    if batch is not None:
        return batch
    ids = tokens(job)
    return {"input_ids": ids, "labels": ids}


def layers(model: Any) -> list[Any]:
    """The decoder layers: the longest list of modules that is in no other list."""
    import torch

    kinds = (torch.nn.ModuleList, torch.nn.Sequential)
    lists = [m for m in model.modules() if isinstance(m, kinds)]
    inner = {id(sub) for one in lists for sub in one.modules() if sub is not one}
    outer = [one for one in lists if id(one) not in inner]
    return max((list(one) for one in outer), key=len, default=[])


def recompute(run: Run, model: Any) -> None:
    """Activation checkpointing as transformers does it, on the layers the run asks for."""
    if run.recompute == "none":
        return
    if run.recompute == "selective":
        raise InputError(
            ["training.activation_checkpointing='selective' has no switch in transformers; use "
             "'full', or trace --function with your own policy"]
        )  # fmt: skip
    model.gradient_checkpointing_enable(
        gradient_checkpointing_kwargs={"use_reentrant": run.reentrant}
    )
    every = layers(model)
    for layer in every[len(every) * run.recompute_quarters // 4 :]:
        layer.gradient_checkpointing = False


def recompute_module(run: Run, model: Any, checkpoint: Callable[..., Any] | None = None) -> None:
    """The same for a module of one's own: its layers are called through a checkpoint.

    Hooks and all, as transformers' layers are; torch's checkpoint, where no other is given.
    """
    if run.recompute == "none":
        return
    if run.recompute == "selective":
        raise InputError([SELECTIVE])
    torchs = import_module("torch.utils.checkpoint").checkpoint
    through = checkpoint or partial(torchs, use_reentrant=run.reentrant)
    every = layers(model)
    for layer in every[: len(every) * run.recompute_quarters // 4]:
        _call_through(layer, through)


def _call_through(layer: Any, function: Callable[..., Any]) -> None:
    kind = type(layer)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(partial(kind.__call__, self), *args, **kwargs)

    layer.__class__ = type(kind.__name__, (kind,), {"__call__": call})


def loss_of(output: Any) -> Any:
    """The loss in what a model returns: a field, the first of a tuple, or the tensor itself."""
    if isinstance(output, Mapping) and "loss" in output:
        return output["loss"]
    if getattr(output, "loss", None) is not None:
        return output.loss
    return output[0] if isinstance(output, tuple | list) else output
