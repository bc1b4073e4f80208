"""bitsandbytes: what it is asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpu_mem_calculator.core.errors import InputError
from gpu_mem_calculator.engines import engine
from gpu_mem_calculator.jobs import quantized
from gpu_mem_calculator.step.optimizers import OPTIMIZERS


def test_there_is_a_class_for_every_optimizer_that_torch_lacks() -> None:
    """An optimizer that DDP accepts is either torch's or one of bitsandbytes'."""
    torch = {"adamw", "adam", "sgd", "sgd_momentum", "adafactor", "muon"}
    accepted = engine("pytorch_ddp").optimizers
    assert (accepted & set(OPTIMIZERS)) - torch == set(quantized.OPTIMIZERS)


@pytest.mark.parametrize(("name", "kind"), quantized.OPTIMIZERS.items())
def test_optimizers_are_made_by_name(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is bitsandbytes' class of that name over the parameters."""
    seen: list[Any] = []
    made = SimpleNamespace(optim=SimpleNamespace(**{kind: lambda *a, **k: seen.append((a, k))}))
    monkeypatch.setattr(quantized, "import_extra", lambda *_: made)
    quantized.optimizer(name, ["weight"])
    assert seen == [((["weight"],), {"lr": 1e-5})]


def test_unknown_optimizers_are_refused() -> None:
    """The sentence lists what there is."""
    with pytest.raises(InputError, match="'adamw' is not one of bitsandbytes'"):
        quantized.optimizer("adamw", [])
