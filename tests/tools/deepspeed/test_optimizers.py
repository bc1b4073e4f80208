"""DeepSpeed's optimizers, schedules and clipping, read from its JSON."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.tools.deepspeed.read import read

from .test_read import problems, with_zero


@pytest.mark.parametrize(
    ("section", "training"),
    [
        ({"type": "Adam"}, {"optimizer": "adamw"}),
        ({"type": "adam", "params": {"adam_w_mode": False}}, {"optimizer": "adam"}),
        ({"type": "AdamW", "params": {"adam_w_mode": False}}, {"optimizer": "adamw"}),
        (
            {"type": "AdamW", "params": {"torch_adam": True}},
            {"optimizer": "adamw", "optimizer_implementation": "foreach"},
        ),
        ({"type": "Lion", "params": {"lr": 1e-4}}, {"optimizer": "lion"}),
        ({"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}}, {"optimizer": "sgd_momentum"}),
        ({"type": "SGD", "params": {"momentum": 0}}, {"optimizer": "sgd"}),
        (
            {"type": "SGD", "params": {"fused": True}},
            {"optimizer": "sgd", "optimizer_implementation": "fused"},
        ),
    ],
)
def test_optimizer(section: dict[str, Any], training: dict[str, Any]) -> None:
    """DeepSpeed's names in any case; 'Adam' is AdamW unless adam_w_mode is false."""
    found = read({"train_batch_size": 8, "optimizer": section}, num_gpus=8)["training"]
    assert {key: value for key, value in found.items() if key.startswith("opt")} == training


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"type": "OneBitAdam"}, "1-bit optimizers are gone"),
        ({"type": "Lamb"}, "LAMB is not modelled"),
        ({"type": "Muon"}, "Muon is not modelled"),
        ({"type": "Adafactor"}, "not modelled under DeepSpeed"),
        ({"type": "AdamWW"}, "did you mean 'AdamW'?"),
        ({"params": {}}, "optimizer has no 'type'"),
        ({"type": "AdamW", "params": {"max_grad_norm": 0.5}}, "set gradient_clipping to 0.5"),
        ({"type": "AdamW", "params": {"amsgrad": True}}, "a third state"),
        ({"type": "AdamW", "params": {"learning_rate": 1}}, "is not one that the optimizer has"),
        ({"type": "AdamW", "params": {"torch_adam": True, "fused": True}}, "leave torch_adam out"),
        ({"type": "AdamW", "params": {"foreach": True}}, "add torch_adam true"),
        ({"type": "AdamW", "params": {"torch_adam": "auto"}}, "nor the Trainer fills it in"),
        ({"type": "SGD", "params": {"weight_decay": 0.1}}, "second copy of the gradients"),
        (
            {
                "type": "Adam",
                "params": {"torch_adam": True, "adam_w_mode": False, "weight_decay": 0.1},
            },
            "second copy of the gradients",
        ),
        ({"type": "AdamW", "legacy_fusion": True}, "legacy_fusion"),
        ({"type": "AdamW", "parameters": {}}, "did you mean 'params'?"),
    ],
)
def test_optimizers_that_are_refused(section: dict[str, Any], words: str) -> None:
    """One sentence each."""
    (problem,) = problems({"train_batch_size": 8, "optimizer": section})
    assert words in problem


def test_zero_wraps_sgd_when_it_is_told_to() -> None:
    """DeepSpeed asserts zero_allow_untested_optimizer."""
    data = {**with_zero(stage=2), "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
    (problem,) = problems(data)
    assert "zero_allow_untested_optimizer; set that to true" in problem
    found = read({**data, "zero_allow_untested_optimizer": True}, num_gpus=8)
    assert found["training"]["optimizer"] == "sgd"


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"type": "WarmupLr"}, "did you mean 'WarmupLR'?"),
        ({"type": "WarmupLR", "params": {"warmup_steps": 5}}, "did you mean 'warmup_num_steps'?"),
        ({"type": "WarmupLR", "parms": {}}, "did you mean 'params'?"),
    ],
)
def test_schedules_that_are_refused(section: dict[str, Any], words: str) -> None:
    """A schedule takes no memory, and a misspelt one still stops the run."""
    (problem,) = problems({"train_batch_size": 8, "scheduler": section})
    assert words in problem


def test_a_schedule_of_torch_s() -> None:
    """Has its own parameters."""
    section = {"type": "CosineAnnealingLR", "params": {"T_max": 100}}
    assert read({"train_batch_size": 8, "scheduler": section}, num_gpus=8)["training"]


def test_clipping() -> None:
    """0 is none; without the key both programs clip at 1."""
    base = {"train_batch_size": 8}
    assert "gradient_clipping" not in read(base, num_gpus=8)["training"]
    found = read({**base, "gradient_clipping": 0}, num_gpus=8)
    assert found["training"]["gradient_clipping"] == 0
    (problem,) = problems({**base, "gradient_clipping": -1})
    assert problem == "gradient_clipping=-1 must be a number, 0 or more"
