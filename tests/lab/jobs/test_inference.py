"""An inference section as a plain transformers program."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.lab.jobs.inference import settings
from gpu_mem_calculator.runfile.text.errors import InputError


def test_defaults_are_filled_in() -> None:
    """What is left out, or null, has a default."""
    made = settings({"batch_size": 4, "dtype": None})
    assert (made["batch_size"], made["dtype"], made["attention"]) == (4, "bf16", None)


def test_other_engines_are_refused() -> None:
    """Only transformers is run here."""
    with pytest.raises(InputError, match=r"inference\.engine='vllm'"):
        settings({"engine": "vllm"})


def test_every_problem_is_said_at_once() -> None:
    """Quantized weights, cut models and options of servers are each refused by name."""
    given = {"quantization": "awq", "tensor_parallel_size": 2, "gpu_memory_utilization": 0.9}
    with pytest.raises(InputError) as error:
        settings(given)
    assert len(error.value.problems) == 3


def test_a_sequence_longer_than_said_is_refused() -> None:
    """Prompt and new tokens together fit max_seq_len."""
    with pytest.raises(InputError, match="more than max_seq_len=128"):
        settings({"prompt_len": 100, "new_tokens": 29, "max_seq_len": 128})
    assert settings({"prompt_len": 100, "new_tokens": 28, "max_seq_len": 128})["new_tokens"] == 28
