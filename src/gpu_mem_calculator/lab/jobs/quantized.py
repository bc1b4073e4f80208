"""bitsandbytes: a base model in 4 or 8 bits."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ...training.step.loading import natural_key
from .job import Job
from .model import half_dtype, hf_config, import_extra, torch_dtype

NF4, INT8 = "nf4", "int8"
NOT_QUANTIZED = frozenset({"lm_head"})  # transformers does not quantize the output layer
SPREAD = 0.02  # standard deviation of the random weights
PACKED = ("Params4bit", "Int8Params")


class QuantizationSettings(Struct, frozen=True, kw_only=True):
    """How projections are quantized.

    - `name`: nf4 or int8
    - `double`: nf4's scales are quantized, too
    - `threshold`: int8 treats larger inputs as outliers; 0 for none
    - `dtype`: of the tensors that are not quantized; `compute`: of nf4's arithmetic
    - `pretrained`: as transformers' from_pretrained does it; PEFT sees a quantized model
    """

    name: str
    double: bool
    threshold: float = 0.0
    dtype: Any
    compute: Any = None
    device: str
    pretrained: bool = False


def quantized_model(job: Job) -> Any:
    """The run's model with quantized projections, ready to train."""
    run = job.resolved.run
    dtype = half_dtype(run)
    assert run.quantization is not None
    setting = QuantizationSettings(
        name=run.quantization,
        double=run.double_quant,
        threshold=run.int8_threshold,
        dtype=dtype,
        compute=torch_dtype("fp32") if run.nf4_compute_bits == 32 else dtype,
        device=job.world.device,
        pretrained=run.from_pretrained,
    )
    model = quantize(hf_config(job), setting)
    if run.upcast_unquantized or run.upcast_at_startup:
        others = [one for one in model.parameters() if one.dtype == dtype]
        others = [one for one in others if type(one).__name__ not in PACKED]
        for parameter in others:
            parameter.data = parameter.data.float()
        for parameter in others if run.upcast_at_startup else ():
            parameter.data = parameter.data.to(dtype)
    model.train()
    model.config.use_cache = run.use_cache
    return model


def quantize(config: Any, setting: QuantizationSettings) -> Any:
    """A causal model whose projections are allocated and quantized one by one.

    Loading a quantized checkpoint does the same: the whole model never exists in 16 bits.
    """
    torch, transformers = import_extra("torch", "measure"), import_extra("transformers", "measure")
    import_extra("bitsandbytes", "measure")
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=setting.dtype)
    if setting.pretrained:
        _load_by_name(setting, model)
    else:
        _quantize_projections(setting, model)
        _fill_rest(setting, model)
    model.tie_weights()
    if setting.device == "cuda" and not setting.pretrained:
        torch.cuda.empty_cache()
    return model


def _load_by_name(setting: QuantizationSettings, model: Any) -> None:
    """Weights in the order of from_pretrained, after one tensor as large as all of them was freed
    (transformers 5.17.0 modeling_utils.py caching_allocator_warmup).
    """
    torch = import_extra("torch", "measure")
    projections = {f"{name}.weight" for name, one in model.named_modules() if _packs(name, one)}
    shapes = {name: one.shape for name, one in model.named_parameters()}
    bits = 4 if setting.name == NF4 else 8
    whole = sum(
        shape.numel() * (bits if name in projections else 8 * setting.dtype.itemsize) // 8
        for name, shape in shapes.items()
    )
    torch.empty(whole, dtype=torch.uint8, device=setting.device)
    for name in sorted(shapes, key=natural_key):
        path, _, kind = name.rpartition(".")
        value = torch.empty(shapes[name], dtype=setting.dtype, device=setting.device)
        value.normal_(0, SPREAD)
        old = model.get_submodule(path)
        if name in projections:
            value = value.T if not hasattr(old, "in_features") else value
            model.set_submodule(path, _projection(setting, old, value).to(setting.device))
        else:
            setattr(old, kind, torch.nn.Parameter(value, requires_grad=False))
        del value
    _fill_rest(setting, model)
    setattr(model, "is_loaded_in_4bit" if setting.name == NF4 else "is_loaded_in_8bit", True)


def _packs(name: str, layer: Any) -> bool:
    """Whether a module is a projection that is packed."""
    torch = import_extra("torch", "measure")
    conv1d = import_extra("transformers", "measure").pytorch_utils.Conv1D
    return isinstance(layer, torch.nn.Linear | conv1d) and name not in NOT_QUANTIZED


def _quantize_projections(setting: QuantizationSettings, module: Any) -> None:
    """Replace every projection by a quantized one."""
    torch = import_extra("torch", "measure")
    weight = None  # as in a loading loop, it is freed after the next one is allocated
    for name, child in list(module.named_children()):
        if _packs(name, child):
            weight = torch.empty(_sizes(child)[::-1], dtype=setting.dtype, device=setting.device)
            weight.normal_(0, SPREAD)
            setattr(module, name, _projection(setting, child, weight).to(setting.device))
        else:
            _quantize_projections(setting, child)


def _sizes(layer: Any) -> tuple[int, int]:
    """Inputs and outputs of a projection; GPT-2's Conv1D has its weight transposed."""
    rows, columns = layer.weight.shape
    return (columns, rows) if hasattr(layer, "in_features") else (rows, columns)


def _projection(setting: QuantizationSettings, layer: Any, weight: Any) -> Any:
    """A quantized projection of `weight`: nf4 is packed on the device, int8 on the way to it."""
    torch, modules = import_extra("torch", "measure"), import_extra("bitsandbytes.nn", "measure")
    ins, outs = _sizes(layer)
    biased = layer.bias is not None
    sizes = {"input_features": ins, "output_features": outs, "bias": biased, "device": "meta"}
    if setting.name == NF4:
        kind = {"compress_statistics": setting.double, "quant_type": NF4}
        new = modules.Linear4bit(**sizes, compute_dtype=setting.compute or setting.dtype, **kind)
        new.weight = modules.Params4bit(weight, requires_grad=False, **kind)
    else:
        new = modules.Linear8bitLt(**sizes, has_fp16_weights=False, threshold=setting.threshold)
        halves = weight.to(torch.float16).cpu()
        new.weight = modules.Int8Params(halves, requires_grad=False, has_fp16_weights=False)
    if layer.bias is not None:
        new.bias = torch.nn.Parameter(torch.zeros(outs, dtype=setting.dtype))
    return new


def _fill_rest(setting: QuantizationSettings, module: Any) -> None:
    """Random values for tensors that are not quantized: embeddings, norms, the head, tables."""
    torch = import_extra("torch", "measure")
    for name, value in list(module.named_parameters(recurse=False)):
        if value.device.type == "meta":
            tensor = torch.empty(value.shape, dtype=value.dtype, device=setting.device)
            module.register_parameter(name, torch.nn.Parameter(tensor.normal_(0, SPREAD)))
    for name, value in list(module.named_buffers(recurse=False)):
        if value is not None and value.device.type == "meta":
            tensor = torch.rand(value.shape, dtype=value.dtype, device=setting.device)
            module.register_buffer(name, tensor, persistent=False)
    for child in module.children():
        _fill_rest(setting, child)
