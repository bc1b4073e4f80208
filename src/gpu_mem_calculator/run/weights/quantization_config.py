"""A checkpoint's `quantization_config`: the format of its weights, and the modules left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from . import recipes
from .recipes import RECIPES, FormatError
from .scheme import MatrixFormat, WeightFormat

Config = Mapping[str, Any]


def config_scheme(config: Config) -> WeightFormat:
    """The format that a checkpoint states; raises `FormatError` if it is not modelled."""
    method = str(config.get("quant_method") or config.get("quantization_method") or "")
    if not method and isinstance(config.get("quantization"), Mapping):
        method = "modelopt"  # hf_quant_config.json
    reader = READERS.get(method.lower().replace("_", "-"))
    if reader is None:
        raise FormatError(
            f"quantization_config.quant_method={method!r} is not modelled; "
            "known are " + ", ".join(sorted(READERS))
        )
    try:
        stored = reader(config)
    except (TypeError, KeyError, IndexError, AttributeError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        stored = WeightFormat(name="", pack=MatrixFormat(bits=0))
    pack = stored.pack
    if pack is not None and not (1 <= pack.bits <= 16 and min(pack.rows, pack.columns) >= 0):
        raise FormatError(
            f"model.config.quantization_config has a value that {method!r} does not "
            "have: check its bits, group_size, blocks and lists"
        )
    return stored


def _skipped_modules(config: Config, *keys: str) -> tuple[str, ...]:
    """Modules that are not quantized, listed under any of the keys."""
    return tuple(str(name) for key in keys for name in config.get(key) or ())


def _group_size(config: Config, default: int = 128) -> int:
    """Inputs per scale; 0 means all, which configs write as -1."""
    size = int(config.get("group_size", default) or 0)
    return 0 if size < 0 else size


def _fp8(config: Config) -> WeightFormat:
    """`fp8` of transformers and vLLM: a scale per block (weight_block_size) or per tensor."""
    skip = _skipped_modules(config, "modules_to_not_convert", "ignored_layers")
    block = config.get("weight_block_size")
    if block:
        pack = replace(recipes.FP8_BLOCK, rows=int(block[0]), columns=int(block[1]))
        title = f"FP8, a scale for {block[0]} x {block[1]}"
    else:
        static = config.get("activation_scheme") == "static"
        pack = replace(recipes.FP8_TENSOR, constants=4 if static else 0)  # the input's scale
        title = "FP8, a scale for each tensor"
    return WeightFormat(name="fp8", title=title, pack=pack, skip=skip)


def _fbgemm(config: Config) -> WeightFormat:
    return WeightFormat(
        name="fp8",
        title="FP8, a scale for each row",
        pack=recipes.FP8_ROW,
        skip=_skipped_modules(config, "modules_to_not_convert"),
    )


def _awq(config: Config) -> WeightFormat:
    bits = int(config.get("bits", config.get("w_bit", 4)))
    zeros = bits if config.get("zero_point", True) else 0
    group = _group_size(config) or 0
    pack = replace(recipes.AWQ, bits=bits, columns=group, zero_bits=zeros)
    return WeightFormat(
        name="awq",
        title=f"AWQ, {bits} bits, {_scale_words(group)}",
        pack=pack,
        skip=_skipped_modules(config, "modules_to_not_convert"),
    )


def _gptq(config: Config) -> WeightFormat:
    bits, group = int(config.get("bits", 4)), _group_size(config)
    pack = replace(
        recipes.GPTQ4,
        bits=bits,
        columns=group,
        zero_bits=bits,
        symmetric=bool(config.get("sym", True)),
        ordered=bool(config.get("desc_act", False)),
    )
    dynamic = config.get("dynamic") or {}
    skip = tuple(f"re:{key[2:]}" for key in dynamic if str(key).startswith("-:"))
    return WeightFormat(
        name=f"gptq_int{bits}",
        title=f"GPTQ, {bits} bits, {_scale_words(group)}",
        pack=pack,
        skip=skip + _skipped_modules(config, "modules_to_not_convert"),
        head=bool(config.get("lm_head", False)),
    )


def _scale_words(group: int) -> str:
    return f"a scale for {group} inputs" if group else "a scale for each row"


def _bitsandbytes(config: Config) -> WeightFormat:
    skip = _skipped_modules(config, "llm_int8_skip_modules")
    if config.get("load_in_8bit") or config.get("_load_in_8bit"):
        return replace(RECIPES["int8"], skip=skip, title="INT8 of bitsandbytes")
    double = config.get("bnb_4bit_use_double_quant", False)
    pack = recipes.NF4 if double else recipes.NF4_PLAIN
    return WeightFormat(name="nf4", title="NF4 of bitsandbytes", pack=pack, skip=skip)


def _mxfp4(config: Config) -> WeightFormat:
    return replace(RECIPES["mxfp4"], skip=_skipped_modules(config, "modules_to_not_convert"))


def _modelopt(config: Config) -> WeightFormat:
    inner = config.get("quantization")
    inner = inner if isinstance(inner, Mapping) else config
    algorithm = str(inner.get("quant_algo") or "FP8").upper()
    skip = _skipped_modules(inner, "exclude_modules", "ignore")
    if algorithm == "NVFP4":
        return replace(RECIPES["nvfp4"], skip=skip)
    if algorithm == "FP8":
        pack = replace(recipes.FP8_TENSOR, constants=4)
        return WeightFormat(name="fp8", title="FP8, a scale for each tensor", pack=pack, skip=skip)
    raise FormatError(
        f"quantization_config.quant_algo={algorithm!r} is not modelled; FP8 and NVFP4 are"
    )


def _compressed(config: Config) -> WeightFormat:
    """compressed-tensors: one group of weights, by its bits, type and strategy."""
    groups = list((config.get("config_groups") or {}).values())
    kinds = {str(sorted((group.get("weights") or {}).items(), key=str)) for group in groups}
    if len(kinds) != 1:
        raise FormatError(
            f"quantization_config.config_groups has {len(kinds)} kinds of weights; one is modelled"
        )
    first = groups[0]
    weights, inputs = first.get("weights") or {}, first.get("input_activations") or {}
    name, pack = _compressed_pack(weights)
    if inputs and not inputs.get("dynamic", False) and name == "fp8":
        pack = replace(pack, constants=4)
    title = f"{name.upper()} of compressed-tensors, {weights.get('strategy', 'tensor')} scales"
    return WeightFormat(name=name, title=title, pack=pack, skip=_skipped_modules(config, "ignore"))


def _compressed_pack(weights: Config) -> tuple[str, MatrixFormat]:
    bits, kind = int(weights.get("num_bits", 8)), weights.get("type", "int")
    strategy, group = weights.get("strategy") or "tensor", _group_size(weights, 0)
    if kind == "float" and bits == 4:
        return ("nvfp4", recipes.NVFP4) if group == 16 else ("mxfp4", recipes.MXFP4)
    rows = 0 if strategy == "tensor" else 1
    if kind == "float":
        if strategy == "block":
            block = weights.get("block_structure") or (128, 128)
            return "fp8", replace(recipes.FP8_BLOCK, rows=int(block[0]), columns=int(block[1]))
        return "fp8", replace(recipes.FP8_ROW, rows=rows, columns=group)
    zeros = 0 if weights.get("symmetric", True) else bits
    index = 32 if weights.get("actorder") in ("group", True) else 0
    if bits == 8 and not group:
        return "int8", replace(recipes.INT8_ROW, rows=rows)
    pack = replace(
        recipes.INT4_GROUP, bits=bits, rows=rows, columns=group, zero_bits=zeros, index=index
    )
    return f"int{bits}", pack


READERS: Mapping[str, Callable[[Config], WeightFormat]] = {
    "fp8": _fp8,
    "fbgemm-fp8": _fbgemm,
    "awq": _awq,
    "gptq": _gptq,
    "auto-round": _gptq,
    "bitsandbytes": _bitsandbytes,
    "mxfp4": _mxfp4,
    "modelopt": _modelopt,
    "compressed-tensors": _compressed,
}
