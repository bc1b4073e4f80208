"""Batch sizes and values of DeepSpeed's JSON, case by case."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.deepspeed.batch import complete_batch
from gpu_mem_calculator.tools.deepspeed.checked_file import (
    COUNT,
    FLAG,
    NUMBER,
    OBJECT,
    convert_value,
)
from gpu_mem_calculator.tools.deepspeed.read import _sizes


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ((None, 2, None, None), (2, 1, 1)),
        ((None, 2, 3, 4), (2, 3, 4)),
        ((24, 2, 3, None), (2, 3, 4)),
        ((24, 2, 3, 4), (2, 3, 4)),
        ((6, 2, 3, None), (2, 3, 1)),
        ((24, 2, None, 4), (2, 3, 4)),
        ((24, None, 3, 4), (2, 3, 4)),
        ((24, None, None, 4), (6, 1, 4)),
        ((24, None, None, None), (24, 1, 1)),
        ((24, 2, None, None), (2, 12, 1)),
    ],
)
def test_two_batch_sizes_give_the_third(
    given: tuple[int | None, ...], sizes: tuple[int, int, int]
) -> None:
    """train = micro x steps x ranks."""
    assert tuple(complete_batch(*given)) == sizes


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((None, None, 3, 4), "are both missing; add train_micro_batch_size_per_gpu"),
        ((25, 2, 3, 4), "which is 24; set train_batch_size to 24"),
        (
            (32, 2, 3, 4),
            "which is 24; set gradient_accumulation_steps to 4, or train_batch_size to 24",
        ),
        ((25, 2, None, 4), "4 ranks, which is 8; set it to 24"),
        ((29, 2, None, 4), "4 ranks, which is 8; set it to 32"),
        ((3, 2, None, 4), "4 ranks, which is 8; set it to 8"),
        ((25, None, None, 4), "25 is not a multiple of 4 ranks; set it to 24"),
        ((5, 2, 3, None), "1 rank, which is 6; set train_batch_size to 6"),
    ],
)
def test_sizes_that_disagree_name_the_nearest_that_agree(
    given: tuple[int | None, ...], words: str
) -> None:
    """Other steps where they are whole, else another batch."""
    with pytest.raises(InputError) as error:
        complete_batch(*given)
    assert error.value.problems[0].endswith(words)


@pytest.mark.parametrize(
    ("value", "kind", "converted"),
    [
        (True, FLAG, True),
        ({}, OBJECT, {}),
        ("bfloat16", "dtype", "bf16"),
        ("fp32", "dtype", "fp32"),
        (5e8, COUNT, 500_000_000),
        (1, COUNT, 1),
        (0, "size", 0),
        (0, NUMBER, 0),
        (0.5, NUMBER, 0.5),
    ],
)
def test_a_value_of_its_kind_is_converted(value: Any, kind: str, converted: Any) -> None:
    """5e8 is a whole number."""
    result = convert_value(value, kind)
    assert (result, type(result)) == (converted, type(converted))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1, FLAG),
        ([], OBJECT),
        ("int4", "dtype"),
        (16, "dtype"),
        (0, COUNT),
        (0.5, COUNT),
        (True, COUNT),
        (-1, "size"),
        (-0.5, NUMBER),
        (1e300, NUMBER),
        ("1", NUMBER),
    ],
)
def test_a_value_of_another_kind_is_refused(value: Any, kind: str) -> None:
    """A flag is no number, and a count is 1 or more."""
    with pytest.raises(ValueError, match=r"^$"):
        convert_value(value, kind)


@pytest.mark.parametrize(
    ("settings", "gpus", "model_ranks"),
    [
        ({}, None, 1),
        ({"hardware": {"num_gpus": 16}}, 16, 1),
        ({"hardware": {"num_nodes": 2}}, 16, 1),
        ({"hardware": {"num_nodes": 2, "gpus_per_node": 4}}, 8, 1),
        ({"parallelism": {"tensor_parallel_size": 2, "data_parallel_size": 3}}, 6, 2),
        ({"parallelism": {"tensor_parallel_size": 2, "pipeline_parallel_size": 4}}, None, 8),
        ({"parallelism": {"tensor_parallel_size": 0}}, None, 1),
    ],
)
def test_the_ranks_follow_from_the_settings(
    settings: dict[str, Any], gpus: int | None, model_ranks: int
) -> None:
    """GPUs, or the mesh, or nodes of eight GPUs."""
    assert _sizes(settings) == {"num_gpus": gpus, "model_ranks": model_ranks}
