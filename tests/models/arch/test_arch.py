"""How a model's layers are grouped."""

from __future__ import annotations

from copy import copy

from msgspec.structs import replace

from gpu_mem_calculator.models.families import read_config
from tests.conftest import SMALL_LLAMA


def test_equal_layers_are_one_group() -> None:
    """Whether they are one object or two that are equal; another layer begins a group."""
    arch = read_config(SMALL_LLAMA)
    wide = read_config({**SMALL_LLAMA, "intermediate_size": 704}).layers[0]
    layer = arch.layers[0]
    twin = copy(layer)
    assert twin is not layer
    mixed = replace(arch, layers=(layer, twin, wide, layer))
    assert [(first, count) for _, first, count in mixed.runs] == [(0, 2), (2, 1), (3, 1)]
