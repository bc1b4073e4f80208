"""bitsandbytes: a base model in 4 or 8 bits, and optimizers that step in 8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.errors import InputError
from .job import Job
from .model import hf_config, needed

NF4, INT8 = "nf4", "int8"
KEPT = frozenset({"lm_head"})  # transformers leaves the output layer as it is
LEARNING_RATE = 1e-5
SPREAD = 0.02  # standard deviation of the random weights
# bitsandbytes' class for each optimizer of a run file.
OPTIMIZERS = {
    "adamw_8bit": "AdamW8bit",
    "paged_adamw_8bit": "PagedAdamW8bit",
    "lion": "Lion",
    "lion_8bit": "Lion8bit",
}
PACKED = ("Params4bit", "Int8Params")


def optimizer(name: str, params: Sequence[Any]) -> Any:
    """A bitsandbytes optimizer over the parameters that train."""
    if name not in OPTIMIZERS:
        raise InputError([f"training.optimizer={name!r} is not one of bitsandbytes' optimizers "
                          f"here; try {', '.join(OPTIMIZERS)}"])  # fmt: skip
    bitsandbytes = needed("bitsandbytes", "measure")
    return getattr(bitsandbytes.optim, OPTIMIZERS[name])(params, lr=LEARNING_RATE)


def quantized_model(job: Job) -> Any:
    """The run's model with its projections quantized as they are made, one after another.

    Loading a quantized checkpoint does the same: the whole model is never there in 16 bits.
    """
    torch, transformers = needed("torch", "measure"), needed("transformers", "measure")
    needed("bitsandbytes", "measure")
    run, dtype = job.resolved.run, _dtype(job)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(hf_config(job), dtype=dtype)
    _swap(job, model, dtype)
    _fill(job, model)
    model.tie_weights()
    if job.world.device == "cuda":
        torch.cuda.empty_cache()
    if run.upcast_unquantized:
        for parameter in model.parameters():
            if parameter.dtype == dtype and type(parameter).__name__ not in PACKED:
                parameter.data = parameter.data.float()
    model.train()
    model.config.use_cache = False
    return model


def _dtype(job: Job) -> Any:
    torch = needed("torch", "measure")
    precision = job.resolved.run.precision
    return torch.float16 if precision.startswith("fp16") else torch.bfloat16


def _swap(job: Job, module: Any, dtype: Any) -> None:
    """Put a quantized projection in the place of every other one."""
    torch = needed("torch", "measure")
    weight = None  # as in a loading loop, it lives on until the next one is there
    for name, child in list(module.named_children()):
        if isinstance(child, torch.nn.Linear) and name not in KEPT:
            weight = torch.empty(child.weight.shape, dtype=dtype, device=job.world.device)
            weight.normal_(0, SPREAD)
            setattr(module, name, _quantized(job, child, weight).to(job.world.device))
        else:
            _swap(job, child, dtype)


def _quantized(job: Job, layer: Any, weight: Any) -> Any:
    """One projection with these weights: 4 bits are packed on the device, 8 on the way to it."""
    torch, modules = needed("torch", "measure"), needed("bitsandbytes.nn", "measure")
    run, dtype = job.resolved.run, weight.dtype
    sizes = {"input_features": layer.in_features, "output_features": layer.out_features,
             "bias": layer.bias is not None, "device": "meta"}  # fmt: skip
    if run.quantization == NF4:
        kind = {"compress_statistics": run.double_quant, "quant_type": NF4}
        new = modules.Linear4bit(**sizes, compute_dtype=dtype, **kind)
        new.weight = modules.Params4bit(weight, requires_grad=False, **kind)
    else:
        new = modules.Linear8bitLt(**sizes, has_fp16_weights=False)
        halves = weight.to(torch.float16).cpu()
        new.weight = modules.Int8Params(halves, requires_grad=False, has_fp16_weights=False)
    if layer.bias is not None:
        new.bias = torch.nn.Parameter(torch.zeros(layer.out_features, dtype=dtype))
    return new


def _fill(job: Job, module: Any) -> None:
    """Random values for what is not quantized: embeddings, norms, the head, tables."""
    torch = needed("torch", "measure")
    for name, value in list(module.named_parameters(recurse=False)):
        if value.device.type == "meta":
            made = torch.empty(value.shape, dtype=value.dtype, device=job.world.device)
            module.register_parameter(name, torch.nn.Parameter(made.normal_(0, SPREAD)))
    for name, value in list(module.named_buffers(recurse=False)):
        if value is not None and value.device.type == "meta":
            made = torch.rand(value.shape, dtype=value.dtype, device=job.world.device)
            module.register_buffer(name, made, persistent=False)
    for child in module.children():
        _fill(job, child)
