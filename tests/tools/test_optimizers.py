"""transformers.Trainer's optimizers: each is one of ours, or refused in one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.runfile.other_names import OPTIM
from gpu_mem_calculator.tools.trainer.optimizers import REFUSED_OPTIMIZERS, optimizer_keys
from gpu_mem_calculator.training.optimizers import OPTIMIZERS as ROWS


def test_every_name_of_transformers_is_in_one_of_the_tables() -> None:
    """The tables have all of OptimizerNames; the others are names that transformers dropped."""
    names = pytest.importorskip("transformers.training_args").OptimizerNames
    known = {one.value for one in names}
    assert known <= OPTIM.keys() | REFUSED_OPTIMIZERS.keys()
    assert (OPTIM.keys() | REFUSED_OPTIMIZERS.keys()) - known == {"adamw_apex_fused", "adamw_hf"}
    assert not OPTIM.keys() & REFUSED_OPTIMIZERS.keys()


@pytest.mark.parametrize("name", OPTIM)
def test_only_8_bit_states_are_wide_for_embeddings(name: str) -> None:
    """trainer.py create_optimizer asks for it where optim_bits is 8."""
    keys = optimizer_keys(name, {})
    assert isinstance(keys, dict)
    row = ROWS[keys["optimizer"]]
    assert keys.get("embedding_states_32bit", False) == bool(row.block)
    assert row.paged == name.startswith("paged_")


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("sgd", {"optim_args": "momentum=0.9"}, {"optimizer": "sgd_momentum"}),
        ("sgd", {"optim_args": "momentum=0, nesterov=False"}, {"optimizer": "sgd"}),
        ("sgd", {"weight_decay": 0.1}, "copies all gradients"),
        ("rmsprop", {"optim_args": "centered=true"}, "centered of rmsprop is not modelled"),
        ("sgd", {"optim_args": "momentum"}, "must be such as 'momentum=0.9'"),
        ("lomo", {}, "updates weights inside backward"),
        ("adamw_torhc", {}, "is not an optimizer of transformers.Trainer"),
    ],
)
def test_arguments_of_an_optimizer(name: str, args: dict[str, Any], expected: Any) -> None:
    """They choose the row, change nothing, or are refused with the reason."""
    keys = optimizer_keys(name, args)
    assert keys == expected if isinstance(expected, dict) else expected in keys
