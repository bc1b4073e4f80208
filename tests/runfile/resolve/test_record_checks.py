"""What a recorded module may have under which engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpu_mem_calculator.runfile.resolve.record_checks import _not_trained, card_problems
from gpu_mem_calculator.training.engines import engine

FROZEN: Any = SimpleNamespace(frozen=(("base.weight", (4, 4), 16),), unused=())
UNUSED: Any = SimpleNamespace(frozen=(), unused=("head.bias",))


@pytest.mark.parametrize(
    ("name", "stage", "frozen", "unused"),
    [
        ("pytorch_ddp", None, "", "head.bias is trained and not in the loss"),
        ("fsdp", None, "base.weight is frozen", "head.bias is trained and not in the loss"),
        ("deepspeed", 0, "", "head.bias is trained and not in the loss"),
        ("deepspeed", 1, "", ""),
        ("deepspeed", 2, "", ""),
        ("deepspeed", 3, "base.weight is frozen", ""),
    ],
)
def test_frozen_and_unused_parameters_depend_on_the_engine(
    name: str, stage: int | None, frozen: str, unused: str
) -> None:
    """FSDP and ZeRO 3 shard frozen ones; ZeRO 1 to 3 have unused ones in their flat buffers."""
    options = {} if stage is None else {"zero_stage": stage}
    for record, words in ((FROZEN, frozen), (UNUSED, unused)):
        problems = list(_not_trained(record, engine(name), options))
        assert len(problems) == bool(words)
        assert all(problem.startswith(words) for problem in problems)


@pytest.mark.parametrize(("capability", "problems"), [("9.0", 0), ("8.0", 1)])
def test_a_record_is_for_one_compute_capability(capability: str, problems: int) -> None:
    """torch chooses other kernels on another card."""
    record: Any = SimpleNamespace(compute_capability="9.0")
    hardware: Any = SimpleNamespace(compute_capability=capability)
    assert len(list(card_problems(record, hardware))) == problems
