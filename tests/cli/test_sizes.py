"""The choices of `quick`: models, meshes and whole numbers."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.cli.sizes import _meshes, choose_model, whole_number


def test_a_whole_number_is_positive() -> None:
    """Anything else is the default."""
    assert [whole_number(value, 8) for value in (1, 0, -1, "4", None)] == [1, 8, 8, 8, 8]


@pytest.mark.parametrize(
    ("gpus", "per_node", "meshes"),
    [
        (1, 8, [(1, 1)]),
        (2, 1, [(1, 1), (1, 2)]),
        (8, 8, [(1, 1), (2, 1), (4, 1), (8, 1)]),
        (16, 8, [(1, 1), (2, 1), (4, 1), (8, 1), (8, 2)]),
        (12, 8, [(1, 1), (2, 1), (4, 1), (4, 3)]),
        (12, 2, [(1, 1), (2, 1), (2, 2), (2, 3), (2, 6)]),
        (7, 8, [(1, 1), (1, 7)]),
    ],
)
def test_tensor_parallelism_stays_in_a_node(
    gpus: int, per_node: int, meshes: list[tuple[int, int]]
) -> None:
    """Powers of two that divide the GPUs, then every number of stages that divides the rest."""
    assert list(_meshes(gpus, per_node)) == meshes


def test_a_pipeline_has_512_stages_at_most() -> None:
    """No model has more layers."""
    assert list(_meshes(1024, 1))[-1] == (1, 512)


@pytest.mark.parametrize(
    ("size", "preset", "near"),
    [
        ("6064574055", "llama2-7b", True),  # of 6,738,415,616 parameters, 10 % are 673,841,561.6
        ("6064574054", "llama2-7b", False),
        ("75874313011", "llama2-70b", True),  # of 68,976,648,192 they are 6,897,664,819.2
        ("75874313012", "llama2-70b", False),
    ],
)
def test_a_size_within_10_percent_means_a_known_model(size: str, preset: str, near: bool) -> None:
    """Beyond that, its parameters are scaled."""
    choice = choose_model(size)
    assert choice.preset == preset
    assert (f"model.num_parameters={size}" not in choice.settings) is near
