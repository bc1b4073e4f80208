"""bitsandbytes: what it is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.lab.jobs import quantized


def test_a_projection_s_weight_has_a_row_for_each_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 16 bits it is outputs x inputs, GPT-2's transposed Conv1D included; the head stays."""
    torch = pytest.importorskip("torch")
    conv1d = pytest.importorskip("transformers.pytorch_utils").Conv1D
    setting = quantized.QuantizationSettings(
        name=quantized.NF4, double=False, dtype=torch.bfloat16, device="cpu"
    )
    shapes: list[tuple[int, ...]] = []

    def projection(_: Any, layer: Any, weight: Any) -> Any:
        shapes.append(tuple(weight.shape))
        return layer

    monkeypatch.setattr(quantized, "_projection", projection)
    layers = {"q_proj": torch.nn.Linear(3, 5), "c_fc": conv1d(nf=7, nx=3)}
    inside = torch.nn.ModuleDict(layers)
    model = torch.nn.ModuleDict({"layer": inside, "lm_head": torch.nn.Linear(3, 11)})
    quantized._quantize_projections(setting, model)
    assert shapes == [(5, 3), (7, 3)]
