"""What MPS leaves a client of a GPU."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.estimates.checked import CheckQuestion, asked_readings, check_reading
from gpu_mem_calculator.estimates.fit_verdict import FITS, SHORT
from gpu_mem_calculator.ledger.units import GIB, MIB
from gpu_mem_calculator.tools.reading.command import MPS_LIMIT, Command

SERVES = "vllm serve Qwen/Qwen3-8B --gpu-memory-utilization 0.5 --max-model-len 8192"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0=10G", 10 * GIB),
        ("0=10G,1=512MB", 512 * MIB),
        ("0 = 2GB", 2 * GIB),
        ("0=0G", None),
        ("10G", None),
        ("", None),
    ],
)
def test_the_least_of_a_limit(text: str, size: int | None) -> None:
    """Of all GPUs that it names."""
    assert Command(words=("x",), environment={MPS_LIMIT: text}).mps_bytes == size


@pytest.mark.parametrize(("limit", "word"), [("20G", SHORT), ("60G", FITS)])
def test_a_limit_is_what_is_free(limit: str, word: str) -> None:
    """A server's share is of the whole card, and has to be free."""
    question = CheckQuestion(hardware={"gpu": "h100-80gb-sxm"})
    (reading,) = asked_readings(f"{MPS_LIMIT}=0={limit} {SERVES}", question, None)
    found = check_reading(reading, question).result
    assert found is not None
    assert found.verdict == word
