"""bitsandbytes: what it is asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpu_mem_calculator.lab.jobs import quantized
from gpu_mem_calculator.lab.jobs.optimizers import TORCH, TRANSFORMERS
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.training.engines import engine
from gpu_mem_calculator.training.step.optimizers import OPTIMIZERS


def test_there_is_a_class_for_every_optimizer_that_torch_lacks() -> None:
    """An optimizer that DDP accepts is torch's, transformers' or one of bitsandbytes'."""
    accepted = engine("pytorch_ddp").optimizers
    assert accepted == {*TORCH, *TRANSFORMERS, *quantized.OPTIMIZERS}


@pytest.mark.parametrize("name", quantized.OPTIMIZERS)
def test_optimizers_are_made_by_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is bitsandbytes' class over the parameters, with the states that the table has."""
    kind, bits = quantized.OPTIMIZERS[name]
    seen: list[Any] = []
    manager = SimpleNamespace(register_module_override=lambda *a: seen.append(a))
    optim = SimpleNamespace(
        **{kind: lambda *a, **k: seen.append((a, k))},
        GlobalOptimManager=SimpleNamespace(get_instance=lambda: manager),
    )
    monkeypatch.setattr(quantized, "import_extra", lambda *_: SimpleNamespace(optim=optim))
    quantized.optimizer(name, ["weight"], ["table"])
    paged = {"is_paged": True} if OPTIMIZERS[name].paged else {}
    assert OPTIMIZERS[name].bits == bits
    made = ((["weight"],), {"lr": 1e-5, "optim_bits": bits, **paged})
    assert seen == [made, ("table", "weight", {"optim_bits": 32})]


def test_unknown_optimizers_are_refused() -> None:
    """The sentence lists what there is."""
    with pytest.raises(InputError, match="'adamw' is not one of bitsandbytes'"):
        quantized.optimizer("adamw", [])


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
