"""bitsandbytes: a base model in 4 or 8 bits, and optimizers that step in 8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from ..core.errors import InputError
from .job import Job
from .model import hf_config, import_extra

NF4, INT8 = "nf4", "int8"
NOT_QUANTIZED = frozenset({"lm_head"})  # transformers leaves the output layer as it is
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
    bitsandbytes = import_extra("bitsandbytes", "measure")
    return getattr(bitsandbytes.optim, OPTIMIZERS[name])(params, lr=LEARNING_RATE)


class QuantizationSettings(Struct, frozen=True, kw_only=True):
    """How projections are quantized: `double` packs the scales of 4 bits, too; from `threshold` on
    (0: never) numbers are outliers that 8 bits leave out.
    """

    name: str
    double: bool
    threshold: float = 0.0
    dtype: Any
    device: str


def quantized_model(job: Job) -> Any:
    """The run's model with its projections quantized as they are made, ready to train."""
    run = job.resolved.run
    torch = import_extra("torch", "measure")
    dtype = torch.float16 if run.precision.startswith("fp16") else torch.bfloat16
    assert run.quantization is not None
    how = QuantizationSettings(name=run.quantization, double=run.double_quant, dtype=dtype,
                  device=job.world.device)  # fmt: skip
    model = quantize(hf_config(job), how)
    if run.upcast_unquantized:
        for parameter in model.parameters():
            if parameter.dtype == dtype and type(parameter).__name__ not in PACKED:
                parameter.data = parameter.data.float()
    model.train()
    model.config.use_cache = False
    return model


def quantize(config: Any, how: QuantizationSettings) -> Any:
    """A causal model with its projections quantized one after another.

    Loading a quantized checkpoint does the same: the whole model is never there in 16 bits.
    """
    torch, transformers = import_extra("torch", "measure"), import_extra("transformers", "measure")
    import_extra("bitsandbytes", "measure")
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=how.dtype)
    _quantize_projections(how, model)
    _fill_rest(how, model)
    model.tie_weights()
    if how.device == "cuda":
        torch.cuda.empty_cache()
    return model


def _quantize_projections(how: QuantizationSettings, module: Any) -> None:
    """Put a quantized projection in the place of every other one."""
    torch = import_extra("torch", "measure")
    conv1d = import_extra("transformers", "measure").pytorch_utils.Conv1D
    weight = None  # as in a loading loop, it lives on until the next one is there
    for name, child in list(module.named_children()):
        if isinstance(child, torch.nn.Linear | conv1d) and name not in NOT_QUANTIZED:
            weight = torch.empty(_sizes(child)[::-1], dtype=how.dtype, device=how.device)
            weight.normal_(0, SPREAD)
            setattr(module, name, _projection(how, child, weight).to(how.device))
        else:
            _quantize_projections(how, child)


def _sizes(layer: Any) -> tuple[int, int]:
    """Inputs and outputs of a projection; GPT-2's Conv1D has them the other way round."""
    rows, columns = layer.weight.shape
    return (columns, rows) if hasattr(layer, "in_features") else (rows, columns)


def _projection(how: QuantizationSettings, layer: Any, weight: Any) -> Any:
    """One projection with these weights: 4 bits are packed on the device, 8 on the way to it."""
    torch, modules = import_extra("torch", "measure"), import_extra("bitsandbytes.nn", "measure")
    ins, outs = _sizes(layer)
    sizes = {"input_features": ins, "output_features": outs, "bias": layer.bias is not None,
             "device": "meta"}  # fmt: skip
    if how.name == NF4:
        kind = {"compress_statistics": how.double, "quant_type": NF4}
        new = modules.Linear4bit(**sizes, compute_dtype=how.dtype, **kind)
        new.weight = modules.Params4bit(weight, requires_grad=False, **kind)
    else:
        new = modules.Linear8bitLt(**sizes, has_fp16_weights=False, threshold=how.threshold)
        halves = weight.to(torch.float16).cpu()
        new.weight = modules.Int8Params(halves, requires_grad=False, has_fp16_weights=False)
    if layer.bias is not None:
        new.bias = torch.nn.Parameter(torch.zeros(outs, dtype=how.dtype))
    return new


def _fill_rest(how: QuantizationSettings, module: Any) -> None:
    """Random values for what is not quantized: embeddings, norms, the head, tables."""
    torch = import_extra("torch", "measure")
    for name, value in list(module.named_parameters(recurse=False)):
        if value.device.type == "meta":
            made = torch.empty(value.shape, dtype=value.dtype, device=how.device)
            module.register_parameter(name, torch.nn.Parameter(made.normal_(0, SPREAD)))
    for name, value in list(module.named_buffers(recurse=False)):
        if value is not None and value.device.type == "meta":
            made = torch.rand(value.shape, dtype=value.dtype, device=how.device)
            module.register_buffer(name, made, persistent=False)
    for child in module.children():
        _fill_rest(how, child)
