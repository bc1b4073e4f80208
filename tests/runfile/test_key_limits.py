"""The least and the most that a key of the run file takes."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read

# key, the least and the most that are taken, the nearest that are refused
LIMITS: list[tuple[str, tuple[Any, ...], tuple[Any, ...]]] = [
    ("inference.batch_size", (1, 10**9), (0, 10**9 + 1)),
    ("inference.max_loras", (1, 2**20), (0, 2**20 + 1)),
    ("inference.max_cudagraph_capture_size", (0, 2**20), (-1, 2**20 + 1)),
    ("inference.new_tokens", (0, 10**15), (-1, 10**15 + 1)),
    ("inference.gpu_memory_utilization", (1e-6, 1.0, 1), (0, 1.001)),
    ("inference.cpu_offload_gb", (0, 1e6), (-0.001, 1_000_001)),
    ("inference.dtype", ("x",), ("", 1)),
    ("inference.enforce_eager", (True, False), (0, "yes")),
    ("model.name", ("x",), ("", 1)),
    ("model.revision", ("x", "x" * 255), ("", "x" * 256)),
    ("model.num_layers", (1, 1024), (0, 1025)),
    ("model.hidden_size", (1, 10**9), (0, 10**9 + 1)),
    ("model.dropout", (0, 0.999), (-0.001, 1)),
    ("parallelism.pipeline_parallel_size", (1, 256), (0, 257)),
    ("training.activation_checkpointing", (0, 4, "full"), (-1, 5, "all")),
    ("hardware.gpu_memory_bytes", (10**15,), (-1, 10**15 + 1)),
    ("hardware.gpu_memory_gb", (0.001, 1e12), (0.0009, 1e13)),
]


def _run(key: str, value: Any) -> dict[str, Any]:
    section, _, name = key.partition(".")
    return {"model": {"name": "gpt2"}} | {section: {name: value}}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, taken, _ in LIMITS for value in taken]
)
def test_a_value_at_the_limit_is_taken(key: str, value: Any) -> None:
    """The limit itself is within the rule."""
    section, _, name = key.partition(".")
    assert getattr(getattr(read(_run(key, value)).file, section), name) == value


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, _, refused in LIMITS for value in refused]
)
def test_a_value_beyond_the_limit_is_refused(key: str, value: Any) -> None:
    """With the key, the value and the rule."""
    with pytest.raises(InputError) as error:
        read(_run(key, value)).checked()
    (problem,) = error.value.problems
    assert problem.startswith(f"{key}={value!r:.57}")
    assert " must be " in problem
