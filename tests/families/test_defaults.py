"""What a config leaves out: a family's defaults are those of its class in transformers."""

from __future__ import annotations

import warnings

import pytest

from gpu_mem_calculator.families import families, read_config
from gpu_mem_calculator.model.arch import Arch

# Their classes write no number of experts.
LEFT_OUT = {"deepseek_v2", "dots1"}


def sizes(arch: Arch) -> tuple[object, ...]:
    """Everything that a default can change: shapes, windows and positions."""
    shapes = [(name, tuple(size for _, size in dims)) for name, dims in named(arch)]
    return shapes, len(arch.layers), arch.windows, arch.max_seq_len, arch.tied


def named(arch: Arch) -> list[tuple[str, tuple[tuple[str, object], ...]]]:
    """Every parameter of the distinct layers, and of what is around them."""
    weights = [w for layer, first, count in arch.runs for w in layer.weights()]
    return [
        (w.name, w.dims) for w in (*arch.embedding, *weights, *arch.after_weights(), *arch.tower)
    ]


@pytest.mark.parametrize("family", sorted(set(families()) - LEFT_OUT))
def test_what_is_left_out_is_what_transformers_would_take(family: str) -> None:
    """A config with `model_type` alone is the one with every key that its class writes."""
    transformers = pytest.importorskip("transformers")
    mapping = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if family not in mapping:
        pytest.skip("the family's code is not in transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        full = mapping[family]().to_dict()
    if "text_config" in full:
        pytest.skip("a config of several parts: its text model is a family of this list")
    assert sizes(read_config({"model_type": family})) == sizes(read_config(full))
