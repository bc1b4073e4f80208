"""What is accepted as the record of a module."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.run.record import RecordError, arithmetic, read_record, under_init

EVENTS = {"sizes": [8, 16, 4], "entry": 0, "exit": 1, "forward": [2, 1, -3], "backward": [-2]}


def record(part: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The record of a module of one layer, whose events are changed by `part`."""
    events = {**EVENTS, **(part or {})}
    layer = {"kind": "block", "weights": [], "modules": [], "script": events, "once": EVENTS}
    around = {**layer, "script": EVENTS}
    data = {
        **{"title": "m", "arithmetic": "bf16", "compute_capability": "9.0", "batch": 1},
        **{"batch_bytes": 8, "tokens": 1, "width": 8, "layers": [layer], "order": [0, 0]},
        **{"before": around, "after": around},
    }
    return {**data, **changes}


@pytest.mark.parametrize(
    "part",
    [
        {},
        {"exit_grad": -1, "entry_grad": -1},
        {"exit_grad": 2, "forward": [1], "backward": [-3]},
        {"sizes": [0, 16, 4]},
        {"drops": [[0, 2]], "work": [2]},
        {"drops": [[0, -1]], "work": [0]},
        {"entry": 2, "forward": [0, 1], "backward": [-3]},
        {"exit": 2},
    ],
)
def test_events_that_free_what_is_alive_are_accepted(part: dict[str, Any]) -> None:
    """Tensors are numbered from 0; -1 stands for none; the input is alive at the start."""
    assert read_record(record(part)).order == (0, 0)


@pytest.mark.parametrize(
    "part",
    [
        {"forward": [2, 2]},  # allocated twice
        {"forward": [2, -3, -3]},  # freed twice
        {"forward": [0]},  # the input is alive
        {"forward": [-2]},  # freed before it is allocated
        {"forward": [3]},  # there are three tensors
        {"forward": [-4]},
        {"backward": [-4]},
        {"exit": 3},
        {"exit": -1},
        {"entry": 3},
        {"entry_grad": 3},
        {"entry_grad": -2},
        {"drops": [[0, 3]]},
        {"work": [3]},
        {"sizes": [-1, 16, 4]},
    ],
)
def test_events_that_cannot_be_are_refused(part: dict[str, Any]) -> None:
    """A tensor is allocated once before it is freed, and it exists."""
    with pytest.raises(RecordError, match="it frees what it has not made"):
        read_record(record(part))


@pytest.mark.parametrize("order", [[1], [0, -1]])
def test_a_layer_that_is_not_there_is_refused(order: list[int]) -> None:
    """The order names layers by their index."""
    with pytest.raises(RecordError, match="it frees what it has not made"):
        read_record(record(order=order))


@pytest.mark.parametrize("changes", [{"order": []}, {"layers": []}, {"arithmetic": "int4"}])
def test_a_record_without_layers_or_arithmetic_is_refused(changes: dict[str, Any]) -> None:
    """Nothing can be estimated from it."""
    with pytest.raises(RecordError, match="it has no layers, or an arithmetic that is not known"):
        read_record(record(**changes))


@pytest.mark.parametrize(
    ("options", "under"),
    [
        ({"zero_stage": 3}, True),
        ({"zero_stage": 3, "zero_init": False}, False),
        ({"zero_stage": 2}, False),
        ({"zero_stage": 2, "zero_init": True}, False),
        ({}, False),
    ],
)
def test_zero_init_is_stage_3s(options: dict[str, Any], under: bool) -> None:
    """And the default there."""
    assert under_init(options) is under


@pytest.mark.parametrize(
    ("engine", "precision", "options", "autocast", "name"),
    [
        ("pytorch_ddp", "bf16_mixed", {}, False, "bf16_autocast"),
        ("fsdp", "bf16_mixed", {}, False, "bf16_weights"),
        ("fsdp", "bf16_pure", {}, False, "bf16"),
        ("fsdp", "bf16_pure", {}, True, "bf16_autocast"),
        ("deepspeed", "fp16_mixed", {"zero_stage": 3}, False, "fp16"),
        ("deepspeed", "fp16_mixed", {"zero_stage": 2}, False, "fp16_weights"),
        ("pytorch_ddp", "fp32", {}, False, "fp32"),
    ],
)
def test_the_arithmetic_follows_from_engine_and_precision(
    engine: str, precision: str, options: dict[str, Any], autocast: bool, name: str
) -> None:
    """DDP runs mixed precision under autocast; others cast the weights."""
    assert arithmetic(engine, precision, options, autocast) == name
