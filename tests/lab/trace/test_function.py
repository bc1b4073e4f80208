"""A user's own function, which makes a model and a batch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from gpu_mem_calculator.lab.jobs.function import (
    UserFunction,
    check_values,
    elements,
    load,
    run_without_model,
)
from gpu_mem_calculator.lab.trace.run import trace
from gpu_mem_calculator.runfile.text.errors import InputError

CODE = """
import torch

class Net(torch.nn.Module):
    def __init__(self, returns="loss"):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(3))
        self.returns = returns

    def forward(self, x, scale=1.0):
        for block in self.blocks:
            x = block(x)
        loss = (x * scale).mean()
        return {"loss": loss, "tuple": (loss, x), "dict": {"loss": loss}, "logits": x,
                "text": "nothing", "fixed": loss.detach()}[self.returns]

def rows(): return torch.randn(8, 64)
def tensor(): return Net(), rows()
def arguments(): return Net(), (rows(), 2.0)
def names(): return Net("dict"), {"x": rows(), "scale": 2.0}
def first(): return Net("tuple"), rows()
def logits(): return Net("logits"), rows()
def text(): return Net("text"), rows()
def fixed(): return Net("fixed"), rows()
def model_only(): return Net()
def no_model(): return rows(), rows()
def no_batch(): return Net(), None
def frozen(): return Net().requires_grad_(False), rows()
def meta_half(): return Net().to(torch.bfloat16), rows().bfloat16()
def wrong(): return Net(), torch.randn(8, 63)
def raises(): raise ValueError("the data is not here")
def sized(rows, *, width=64, **rest): return Net(**rest), torch.randn(rows, width)
def by_place(rows, /): return Net(), rows()
def full(): raise torch.OutOfMemoryError("CUDA out of memory")
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with the user's module, which is the current one."""
    (tmp_path / "users_model.py").write_text(CODE)
    (tmp_path / "broken_module.py").write_text("raise KeyError('at import')")
    monkeypatch.chdir(tmp_path)
    yield
    for name in ("users_model", "broken_module"):
        sys.modules.pop(name, None)


def traced(name: str, precision: str = "fp32", **sections: Any) -> Any:
    """A trace of a function, one step."""
    data, _ = run_without_model({"training": {"precision": precision}, **sections})
    return trace(data, steps=1, build=UserFunction(f"users_model:{name}", precision))


def problem(name: str, precision: str = "fp32") -> str:
    """The one sentence that a function is refused with."""
    with pytest.raises(InputError) as caught:
        traced(name, precision)
    (sentence,) = caught.value.problems
    return sentence


@pytest.mark.parametrize("name", ["tensor", "arguments", "names", "first"])
def test_batches_and_losses(name: str) -> None:
    """A tensor, a tuple and a dict are batches; a scalar, a tuple and a dict have the loss."""
    states = 3 * (64 * 64 + 64) * 4
    assert traced(name).allocated_bytes > 4 * states


def test_parameters_are_the_module_s() -> None:
    """They are counted, not estimated."""
    function = UserFunction("users_model:tensor", "fp32")
    data, _ = run_without_model({"training": {"precision": "fp32"}})
    trace(data, steps=1, build=function)
    assert function.num_parameters == function.num_trained == 3 * (64 * 64 + 64)


def test_fsdp_shards_its_list_of_modules() -> None:
    """Four ranks hold a quarter of what one holds, in states."""
    alone = traced("tensor", engine={"type": "fsdp"}, hardware={"num_gpus": 1})
    shared = traced("tensor", engine={"type": "fsdp"}, hardware={"num_gpus": 4})
    assert shared.phases["s0.opt"].start_next_bytes < alone.phases["s0.opt"].start_next_bytes


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model_only", "must return a model and a batch, not a Net"),
        ("no_model", "must return a torch.nn.Module and a batch"),
        ("no_batch", "returned nothing as the batch"),
        ("frozen", "no parameter that takes a gradient"),
        ("logits", "a tensor of 8 x 64 as the loss, which must be one number"),
        ("text", "returned a str, which has no loss"),
        ("fixed", "takes no gradient"),
    ],
)
def test_what_cannot_be_traced_is_a_sentence(name: str, words: str) -> None:
    """What a function returns is checked before torch stumbles over it."""
    assert words in problem(name)
    assert "\n" not in problem(name)


def test_the_run_s_precision_is_the_model_s() -> None:
    """Weights in another dtype than the run file says would make the figures wrong."""
    assert "return model.to(torch.bfloat16)" in problem("tensor", "bf16_pure")
    assert traced("meta_half", "bf16_pure").allocated_bytes > 0


def test_an_error_of_the_function_is_shown() -> None:
    """Under a line of ours, from the user's first frame on."""
    with pytest.raises(InputError) as caught:
        traced("raises")
    first, *rest = caught.value.problems[0].splitlines()
    assert first == "--function users_model:raises failed with its own error:"
    assert rest[0] == "Traceback (most recent call last):"
    assert "users_model.py" in rest[1]
    assert rest[-1] == "ValueError: the data is not here"


def test_an_error_at_import_is_shown() -> None:
    """A module that does not load says why itself."""
    with pytest.raises(InputError, match=r"broken_module\.py") as caught:
        load("broken_module:make")
    assert str(caught.value).endswith("KeyError: 'at import'")


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("users_model", "--function 'users_model' must be package.module:function"),
        (
            "no_such.module:make",
            "--function no_such.module:make: there is no module "
            "'no_such.module' in the current folder or among the installed ones",
        ),
        (
            "no_such:make",
            "--function no_such:make: there is no module "
            "'no_such' in the current folder or among the installed ones",
        ),
        (
            "users_model:tenso",
            "--function users_model:tenso: users_model has no function 'tenso'; "
            "did you mean 'tensor'?",
        ),
    ],
)
def test_what_is_not_there_is_a_sentence(spec: str, sentence: str) -> None:
    """A module or a function that is not found."""
    with pytest.raises(InputError) as caught:
        load(spec)
    assert caught.value.problems == [sentence]


def test_the_current_folder_is_no_longer_searched() -> None:
    """Loading leaves the search path as it was."""
    before = list(sys.path)
    load("users_model:tensor")
    assert sys.path == before


def test_keys_that_the_function_decides_are_named() -> None:
    """The model, the batch and the sequence of a run file are not used, and that is said."""
    _, unused = run_without_model({"model": {"name": "x"}, "training": {"seq_len": 8}})
    assert unused == ["model", "training.seq_len"]


def test_keys_that_would_change_the_model_are_refused() -> None:
    """Adapters that nobody makes would be a wrong figure."""
    with pytest.raises(InputError, match="make the adapters in the function"):
        run_without_model({"training": {"lora": {"r": 8}}})


def made(name: str, values: dict[str, Any] | None = None, **rest: Any) -> Any:
    """What a function returns, on real tensors."""
    return UserFunction(f"users_model:{name}", "fp32", values, **rest)()


def test_values_are_arguments_of_the_function() -> None:
    """By their names, also those that it hands on."""
    model, (rows,) = made("sized", {"rows": 3, "returns": "dict"})
    assert rows.shape == (3, 64)
    assert model.returns == "dict"


@pytest.mark.parametrize(
    ("name", "values", "sentence"),
    [
        (
            "tensor",
            {"rows": 3},
            "--with rows: users_model:tensor has no such argument, it takes none",
        ),
        ("sized", {}, "--function users_model:sized needs 'rows'; add --with rows=VALUE"),
        (
            "sized",
            {"rows": 3, "withd": 3},
            "--with withd: users_model:sized hands it on to "
            "Net.__init__(), which has no such argument",
        ),
        (
            "by_place",
            {},
            "--function users_model:by_place: 'rows' cannot be given by its name; "
            "take the '/' away",
        ),
    ],
)
def test_a_value_that_the_function_does_not_take(
    name: str, values: dict[str, Any], sentence: str
) -> None:
    """Is named in a sentence, with those that it takes."""
    with pytest.raises(InputError) as caught:
        made(name, values)
    assert caught.value.problems == [sentence]


def test_the_names_that_a_function_takes_are_listed() -> None:
    """And the nearest one."""

    def sized(rows: int = 1, *, width: int = 64) -> None:
        raise AssertionError

    with pytest.raises(InputError) as caught:
        check_values("m:sized", sized, {"widht": 3})
    (sentence,) = caught.value.problems
    assert sentence == (
        "--with widht: m:sized has no such argument, it takes rows, width; did you mean 'width'?"
    )


def test_the_batch_goes_where_the_job_runs() -> None:
    """Also where the model is made elsewhere; what is no tensor stays."""
    model, (rows, scale) = made("arguments", device="meta", made_on="cpu")
    assert (rows.device.type, scale) == ("meta", 2.0)
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    model, batch = made("names", device="meta")
    assert {p.device.type for p in model.parameters()} == {batch["x"].device.type} == {"meta"}


def test_a_full_card_is_no_error_of_the_function() -> None:
    """It is a result of the measurement."""
    with pytest.raises(RuntimeError, match="CUDA out of memory"):
        made("full")


def test_parameters_that_zero_init_has_shared_out_count_whole() -> None:
    """DeepSpeed leaves an empty tensor in their place, and keeps the count beside it."""
    import torch

    parameter = torch.nn.Parameter(torch.empty(0))
    parameter.ds_numel = 12  # type: ignore[attr-defined]
    assert elements(parameter) == 12
    assert elements(torch.nn.Parameter(torch.empty(3, 2))) == 6
