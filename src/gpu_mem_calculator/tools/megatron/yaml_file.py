"""Arguments in YAML, as --yaml-cfg reads them (megatron/training/yaml_arguments.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...runfile.text.errors import InputError, quoted
from ..reading.reading import Section
from ..translation.arguments import tables

SECTIONS = ("language_model", "model_parallel")
# Names of megatron-core's configurations, and of the arguments that mean the same.
RENAMED: dict[str, str] = tables(__file__)["renamed"]
GATED, ACTIVATION, FUSION = "gated_linear_unit", "activation_func", "bias_activation_fusion"


def yaml_arguments(data: Any) -> Section:
    """The arguments of a file, those of its sections among them."""
    if not isinstance(data, Mapping):
        raise InputError(f"--yaml-cfg must be an object of arguments, not {quoted(data)}")
    flat: Section = {}
    for key, value in data.items():
        if key in SECTIONS and isinstance(value, Mapping):
            flat |= value
        else:
            flat[str(key)] = value
    given = {RENAMED.get(key, key): value for key, value in flat.items() if value is not None}
    return _with_activation(given)


def _with_activation(given: Section) -> Section:
    """The activation: swiglu, squared_relu, quick_geglu, or GELU (yaml_arguments.py:309)."""
    gated, function = given.pop(GATED, None), given.pop(ACTIVATION, None)
    fused = given.pop(FUSION, None)
    if gated or function == "swiglu":
        given["quick_geglu" if function == "quick_gelu" else "swiglu"] = True
    elif function == "squaredrelu":
        given["squared_relu"] = True
    if fused is not None:
        given["bias_swiglu_fusion" if gated or function == "swiglu" else "bias_gelu_fusion"] = fused
    return given
