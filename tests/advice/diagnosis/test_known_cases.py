"""Public threads with a known cause: the whole answer to each, kept as a transcript.

python -m tests.advice.diagnosis.test_known_cases     writes the transcript anew
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.advice.diagnosis.diagnose import diagnose
from gpu_mem_calculator.report.diagnosis import diagnosis_lines
from gpu_mem_calculator.report.lines import plain

HERE = Path(__file__).parent
TRANSCRIPT = HERE / "known_cases.txt"
CASES = [json.loads(one) for one in (HERE / "known_cases.jsonl").read_text().splitlines()]
# The causes that are told, of the cases whose text says enough; the others have no cause that is
# certain.
CAUSES = {
    "lf1221-zero2-adam": "optimizer_temporaries",
    "llamacpp-1944": "cache_buffer",
    "lmcache-1372": "cache_below_one_sequence",
    "megatron-1509": "nccl",
    "ollama-10615": "cpu_layers",
    "openrlhf-1013": "host_ram",
    "pytorch-175666": "share_too_high",
    "qwen3-295": "cache_below_one_sequence",
    "recipes-551": "states_below_sequences",
    "sglang-14282": "host_cache",
    "verl-3453": "host_ram",
    "vllm-15871": "cache_below_one_sequence",
    "vllm-20305": "card_taken",
    "vllm-22173": "images_in_trial_run",
    "vllm-23278": "no_room_for_cache",
    "vllm-omni-276": "card_taken",
}


def answer(case: dict[str, Any]) -> str:
    """The whole answer to a case."""
    return plain(diagnosis_lines(diagnose(case["text"])))


def transcript() -> str:
    """The answers to all cases."""
    return "\n".join(f"=== {case['id']}\n{answer(case)}\n" for case in CASES)


def test_the_transcript_is_what_is_answered() -> None:
    """To the letter."""
    assert transcript() == TRANSCRIPT.read_text(encoding="utf-8")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_the_cause_is_told_first(case: dict[str, Any]) -> None:
    """Or none is called certain."""
    cause = diagnose(case["text"]).cause
    want = CAUSES.get(case["id"])
    if want is None:
        assert cause is None or cause.certainty != "certain"
    else:
        assert cause is not None
        assert cause.id == want


if __name__ == "__main__":
    TRANSCRIPT.write_text(transcript(), encoding="utf-8")
