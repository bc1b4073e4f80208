"""The optimizer table: states and temporaries."""

from __future__ import annotations

from itertools import accumulate

import numpy
import pytest

from gpu_mem_calculator.models.arch.neighbours import neighbours
from gpu_mem_calculator.training.optimizers import (
    OPTIMIZERS,
    by_width,
    paged_bytes,
    state_bytes,
    tensor_state_bytes,
    tensor_states,
)
from gpu_mem_calculator.training.step.optimizer_temps import (
    clip_temp_bytes,
    loop_events,
    muon_temps,
    step_temp_bytes,
    step_temps,
)

N = 1 << 20


@pytest.mark.parametrize(
    ("name", "bits", "expected"),
    [
        ("adamw", 32, 8 * N),
        ("adamw", 16, 4 * N),
        ("adam", 32, 8 * N),
        ("sgd", 32, 0),
        ("sgd_momentum", 32, 4 * N),
        ("sgd_momentum", 16, 2 * N),
        ("lion", 16, 4 * N),
        ("lion_8bit", 32, N + N // 64),
        ("adamw_8bit", 32, 2 * N + N // 32),
        ("adamw_8bit", 16, 2 * N + N // 32),
        ("paged_adamw_8bit", 16, 2 * N + N // 32),
        ("ademamix", 16, 12 * N),
        ("paged_ademamix", 16, 12 * N),
        ("ademamix_8bit", 16, 3 * N + 3 * N // 64),
        ("paged_ademamix_8bit", 16, 3 * N + 3 * N // 64),
        ("muon", 32, 4 * N),
    ],
)
def test_state_bytes(name: str, bits: int, expected: int) -> None:
    """States have the parameter's bits, or fixed bits and a scale for 256 elements."""
    assert state_bytes(OPTIMIZERS[name], N, bits) == expected


def test_small_tensors_have_fp32_states() -> None:
    """Below 4,096 elements, in bitsandbytes."""
    row = OPTIMIZERS["adamw_8bit"]
    assert tensor_state_bytes(row, 4095, 16) == 2 * 4 * 4095
    assert tensor_state_bytes(row, 4096, 16) == 2 * 4096 + 2 * 4 * 16


@pytest.mark.parametrize(
    ("name", "elements", "expected"),
    [
        ("paged_adamw_8bit", 99_999, 0),
        ("paged_adamw_8bit", 100_000, 200_000),
        ("adamw_8bit", 100_000, 0),
    ],
)
def test_states_are_paged_from_100_000_elements_on(name: str, elements: int, expected: int) -> None:
    """Smaller tensors stay on the GPU, and all tensors of an optimizer that does not page."""
    assert paged_bytes(OPTIMIZERS[name], elements, 16) == expected


@pytest.mark.parametrize(
    ("name", "implementation", "expected"),
    [
        ("adamw", "foreach", 4 * N),
        ("adamw", "fused", 0),
        ("adamw", "forloop", 800),
        ("sgd", "foreach", 0),
        ("sgd_momentum", "forloop", 0),
        ("adafactor", "forloop", 400),
        ("adafactor", "foreach", 4 * N),
        ("adamw_8bit", "fused", 0),
        ("lion", "fused", 0),
    ],
)
def test_step_temporaries(name: str, implementation: str, expected: int) -> None:
    """foreach works on every parameter at once, a loop on the largest, fused kernels on none."""
    assert step_temp_bytes(OPTIMIZERS[name], implementation, N, 100, 32) == expected


@pytest.mark.parametrize(
    ("rows", "cols", "bits", "expected"),
    [
        (5000, 1000, 16, 6 * 5_000_000 + 4 * 1_000_000),
        (1000, 1000, 16, 10 * 1_000_000),
        (5000, 1000, 32, 8 * 5_000_000 + 4 * 1_000_000),
        (1000, 1000, 32, 12 * 1_000_000),
    ],
)
def test_muon_temporaries(rows: int, cols: int, bits: int, expected: int) -> None:
    """Newton-Schulz holds matrices and m × m products, as torch's own step does."""
    tensors = muon_temps(rows * cols, min(rows, cols), bits)
    assert sum(tensors) == expected
    assert sum(size > 0 for size in tensors) == 5


def test_clipping_of_a_measured_run() -> None:
    """Qwen2.5-1.5B with SGD: 338 tensors, the largest of 233,373,696 elements."""
    assert clip_temp_bytes(338, 233_373_696) == 4_987_904


def test_torch_defaults() -> None:
    """Adam's default is foreach, Adafactor's and Muon's a loop, bitsandbytes has one kernel."""
    defaults = {name: row.default for name, row in OPTIMIZERS.items()}
    assert defaults["adamw"] == defaults["sgd"] == "foreach"
    assert defaults["adafactor"] == defaults["muon"] == "forloop"
    assert defaults["adamw_8bit"] == defaults["lion"] == "fused"


def test_arrays_give_what_scalars_give() -> None:
    """Counts may be arrays."""
    counts = numpy.array([100, 5000, 1 << 20])
    for name, row in OPTIMIZERS.items():
        steps = step_temp_bytes(row, "foreach", counts, counts, 16)
        together = state_bytes(row, counts, 16) + steps
        alone = [
            int(state_bytes(row, n, 16) + step_temp_bytes(row, "foreach", n, n, 16))
            for n in counts.tolist()
        ]
        assert together.tolist() == alone, name


def test_adam_steps_as_adamw_does() -> None:
    """The decay is another product, in place: the same states and temporaries."""
    same = ("states", "narrow", "foreach", "forloop", "implementations", "default", "source")
    adam, adamw = OPTIMIZERS["adam"], OPTIMIZERS["adamw"]
    assert [getattr(adam, key) for key in same] == [getattr(adamw, key) for key in same]
    assert (OPTIMIZERS["adam"].states, OPTIMIZERS["adam"].foreach) == (2, 1)
    assert OPTIMIZERS["adam"].forloop == 2


def test_foreach_has_a_temporary_for_each_parameter() -> None:
    """3 parameters of 10 elements and one of 7 in fp32; none where the optimizer works in place."""
    sizes = ((10, 3), (7, 1))
    temps = step_temps(OPTIMIZERS["adamw"], "foreach", sizes, 32, (), 10, 10)
    assert list(temps) == [40, 40, 40, 28]
    assert list(step_temps(OPTIMIZERS["sgd"], "foreach", sizes, 32, (), 10, 10)) == []


@pytest.mark.parametrize(("bits", "copies"), [(16, 4), (32, 2)])
def test_adafactor_of_transformers_holds_the_previous_update(bits: int, copies: int) -> None:
    """At its peak: the update before, fp32 copies of a 16-bit parameter and its gradient, the
    squared gradient and its sum with eps; the events have the same peak.
    """
    row, shapes = OPTIMIZERS["adafactor_transformers"], [(100, 50), (200, 100), (7,)]
    temps = step_temps(row, "forloop", (), bits, neighbours(shapes), 20_000, 100)
    assert sum(temps) == 4 * 5_000 + copies * 4 * 20_000
    events = loop_events(row, shapes, bits)
    assert events is not None
    changes = [events.sizes[e] if e >= 0 else -events.sizes[~e] for e in events.forward]
    alive = list(accumulate(changes))
    assert (max(alive), alive[-1]) == (sum(temps), 0)


def test_tables_have_wide_states_once() -> None:
    """The embedding has fp32 states, and a head of its size has 8-bit ones."""
    row = OPTIMIZERS["adamw_8bit"]
    rows = list(by_width(row, [(5_000, 1), (9_000, 3), (5_000, 1)], (5_000,)))
    assert [(one.bits, n, count) for one, n, count in rows] == [
        (32, 5_000, 1),
        (8, 9_000, 3),
        (8, 5_000, 1),
    ]
    assert tensor_states(rows[0][0], 5_000, 16) == [20_000, 20_000]
    plain = OPTIMIZERS["paged_adamw"]
    assert [one.bits for one, _, _ in by_width(plain, [(5_000, 1)], (5_000,))] == [32]


def test_ademamix_has_both_averages_in_one_tensor() -> None:
    """Two of its three states are one tensor, and so are their scales."""
    assert tensor_states(OPTIMIZERS["ademamix"], 5_000, 16) == [40_000, 20_000]
    assert tensor_states(OPTIMIZERS["ademamix_8bit"], 5_120, 16) == [10_240, 5_120, 160, 80]


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if "ademamix" in name])
def test_two_averages_are_one_tensor(name: str) -> None:
    """bitsandbytes allocates them together."""
    assert OPTIMIZERS[name].merged == 2
