"""What a record of a module does not go with, and modules that have none."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")


from gpu_mem_calculator.estimates.calculator import full_estimate  # noqa: E402
from gpu_mem_calculator.runfile.text.errors import InputError  # noqa: E402

from .test_record import RUNS, deepspeed_run, encoder, recorded, recorded_in_fp32  # noqa: E402


@pytest.mark.parametrize(
    ("options", "data", "sentence"),
    [
        ({"unused": True}, RUNS["fp32"], "extra.weight is trained and not in the loss"),
        ({"unused": True}, RUNS["fsdp"], "extra.weight is trained and not in the loss"),
        ({"frozen": True}, RUNS["fsdp"], "layers.0.linear1.weight is frozen, and"),
        ({"frozen": True}, deepspeed_run(3), "layers.0.linear1.weight is frozen, and"),
    ],
)
def test_weights_without_a_gradient_that_are_not_modelled(
    options: dict[str, bool], data: dict[str, Any], sentence: str
) -> None:
    """Refused in a sentence."""
    with pytest.raises(InputError) as error:
        full_estimate(recorded(encoder(**options), data))
    assert any(problem.startswith(sentence) for problem in error.value.problems)


def test_a_module_that_every_layer_calls_is_refused() -> None:
    """It would be counted once a layer."""

    class Shared(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            norm = torch.nn.LayerNorm(8)
            self.layers = torch.nn.ModuleList(
                torch.nn.Sequential(torch.nn.Linear(8, 8)) for _ in range(2)
            )
            self.norm = norm

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = self.norm(layer(x))
            return x.mean()

    with pytest.raises(InputError, match="and it trains 160"):
        recorded(lambda: (Shared(), (torch.randn(4, 8),)), RUNS["fp32"])


@pytest.mark.parametrize(
    ("section", "values", "sentence"),
    [
        ("training", {"precision": "bf16_mixed"}, "was recorded in fp32; record it again"),
        (
            "training",
            {"precision": "fp32", "batch_size": 4},
            "batch_size=4: the module was recorded",
        ),
        (
            "training",
            {"precision": "fp32", "attention": "eager"},
            "attention is not done to a module",
        ),
        ("training", {"precision": "fp32", "activation_checkpointing": "selective"}, "use 'full'"),
        ("hardware", {"gpu": "a100-80gb-sxm"}, "compute capability 8.0"),
        ("engine", {"type": "megatron_lm"}, "runs its own layers, not a module"),
    ],
)
def test_what_a_record_does_not_go_with(
    section: str, values: dict[str, Any], sentence: str
) -> None:
    """Refused in a sentence."""
    data = recorded_in_fp32()
    with pytest.raises(InputError) as error:
        full_estimate({**data, section: values})
    assert any(sentence in problem for problem in error.value.problems)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("arithmetic",), "fp8"),
        (("order",), [5]),
        (("layers", 0, "script", "forward"), [10**6]),
        (("layers", 0, "script", "backward"), [~0, ~0]),
        (("batch",), "one"),
        (("order",), []),
    ],
)
def test_a_broken_record(path: tuple[Any, ...], value: Any) -> None:
    """One sentence, no traceback."""
    data = recorded_in_fp32()
    *inner, last = path
    place = data["model"]["recorded"]
    for key in inner:
        place = place[key]
    place[last] = value
    with pytest.raises(InputError, match="is not a module's record"):
        full_estimate(data)


def test_layers_that_run_twice_are_refused() -> None:
    """A list that is not run once, in order, is no stack."""

    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))

        def forward(self, x: Any) -> Any:
            for layer in (*self.layers, *self.layers):
                x = layer(x)
            return x.mean()

    with pytest.raises(InputError, match="must be run once, in order"):
        recorded(lambda: (Twice(), (torch.randn(4, 8),)), RUNS["fp32"])


def test_weights_that_are_shared_are_refused() -> None:
    """A head that is the embedding's table: its gradients wait for each other."""

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(16, 8)
            self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))
            self.head = torch.nn.Linear(8, 16, bias=False)
            self.head.weight = self.table.weight

        def forward(self, x: Any) -> Any:
            x = self.table(x)
            for layer in self.layers:
                x = layer(x)
            return self.head(x).mean()

    with pytest.raises(InputError, match=r"table.weight and head.weight are one weight"):
        recorded(lambda: (Tied(), (torch.zeros(4, dtype=torch.long),)), RUNS["fp32"])
