"""The optimizer that a job makes is the one that its row names."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_mem_calculator.lab.jobs import pytorch
from gpu_mem_calculator.training.optimizers import FOREACH, FORLOOP, OPTIMIZERS

torch = pytest.importorskip("torch")


def job(name: str, *, wide: bool = False) -> Any:
    """A job with an optimizer."""
    run = SimpleNamespace(
        optimizer=name, implementation="", options={}, embedding_states_32bit=wide
    )
    return SimpleNamespace(resolved=SimpleNamespace(run=run))


@pytest.mark.parametrize("name", [n for n, row in OPTIMIZERS.items() if not row.of_bitsandbytes])
def test_optimizers_of_torch_and_transformers_are_made(name: str) -> None:
    """With the row's arguments and the implementation that torch chooses on a GPU."""
    if OPTIMIZERS[name].make.startswith("transformers"):
        pytest.importorskip("transformers")
    model, row = torch.nn.Linear(4, 3), OPTIMIZERS[name]
    made = pytorch.optimizer(job(name), list(model.parameters()), model)
    module, _, kind = row.make.partition(":")
    assert type(made) is getattr(import_module(module), kind)
    group = made.param_groups[0]
    assert {key: group[key] for key in row.arguments} == row.arguments
    if FOREACH in row.implementations:
        assert group["foreach"] == (row.default != FORLOOP)
    assert all(one.ndim == 2 for one in group["params"]) or not row.matrices


@pytest.mark.parametrize("name", [n for n, row in OPTIMIZERS.items() if row.of_bitsandbytes])
def test_optimizers_of_bitsandbytes_are_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a class over the parameters, with the states that its row has; tables are wide."""
    row, seen = OPTIMIZERS[name], list[Any]()
    manager = SimpleNamespace(register_module_override=lambda *a: seen.append(a))
    kind = row.make.partition(":")[2]
    library = SimpleNamespace(
        **{kind: lambda *a, **k: seen.append((a, k))},
        GlobalOptimManager=SimpleNamespace(get_instance=lambda: manager),
    )
    monkeypatch.setattr(pytorch, "import_extra", lambda *_: library)
    model = torch.nn.Sequential(torch.nn.Embedding(4, 3), torch.nn.Linear(3, 2))
    pytorch.optimizer(job(name, wide=True), ["weight"], model)
    paged = {"is_paged": True} if row.paged else {}
    made = ((["weight"],), {"lr": 1e-5, "optim_bits": row.bits, **paged})
    assert seen == [made, (model[0], "weight", {"optim_bits": 32})]
