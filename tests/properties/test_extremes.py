"""What the schema allows is answered within limits, or refused before anything is estimated."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from gpu_mem_calculator.cli.main import main
from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.models.families.config import MOST_LAYERS
from tests.corpus import sampled
from tests.properties.extremes import drawn

SECONDS, ADDRESSES = 30, GIB
MOST_CALLS = 5_000_000  # of Python functions
MOST = 10**9
PLAIN = {"num_layers": MOST_LAYERS, "hidden_size": 8192, "num_attention_heads": 64}
EXPERTS = {"moe_enabled": True, "num_experts": MOST, "top_k": 2}
FOUR_HEADS = {"num_layers": 256, "hidden_size": 512, "num_attention_heads": 4}
GPUS = {"gpu": "h100-80gb-sxm"}
LONG = {"seq_len": MOST, "batch_size": MOST, "gradient_accumulation_steps": MOST}
RUNS: dict[str, dict[str, Any]] = {
    "experts": {
        "model": {**PLAIN, **EXPERTS, "hidden_size": 256},
        "engine": {"type": "megatron_lm"},
        "training": {"seq_len": 128},
    },
    "balanced stages": {
        "model": {**PLAIN, "num_layers": 200},
        "engine": {"type": "deepspeed"},
        "training": {"seq_len": 128},
        "parallelism": {"pipeline_parallel_size": 64},
        "hardware": {**GPUS, "num_gpus": 64},
    },
    "server's stages": {
        "model": FOUR_HEADS,
        "inference": {"engine": "vllm", "pipeline_parallel_size": 64},
        "hardware": {**GPUS, "num_gpus": 64},
    },
    "tokens": {"model": {"name": "llama3.1-8b"}, "training": LONG},
    "GPUs": {
        "model": {"name": "gpt2"},
        "engine": {"type": "fsdp"},
        "hardware": {**GPUS, "num_gpus": MOST},
    },
}


class TooMuchError(Exception):
    """More calls than may be."""


class CallCount:
    """Counts the calls of Python functions."""

    def __init__(self) -> None:
        self.calls = 0

    def profile(self, frame: FrameType, event: str, value: object) -> None:
        """Called by Python, for each call and return."""
        self.calls += event == "call"
        if self.calls > MOST_CALLS:
            raise TooMuchError


@pytest.mark.parametrize("name", sampled(RUNS.keys(), keep=3))
def test_an_extreme_run_takes_few_calls(name: str, tmp_path: Path) -> None:
    """With its remedies and its longest sequence."""
    path = tmp_path / "run.json"
    path.write_text(json.dumps(RUNS[name]))
    count = CallCount()
    sys.setprofile(count.profile)
    try:
        code = main(["calculate", str(path)])
    finally:
        sys.setprofile(None)
    assert code == 0


def _limited() -> None:
    """Limits of the process that is about to start."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(90))
def test_a_drawn_run_ends_within_its_limits(seed: int, tmp_path: Path) -> None:
    """30 seconds of CPU time, and 1 GiB of addresses; or it is refused with a sentence."""
    path = tmp_path / "run.json"
    path.write_text(json.dumps(drawn(seed)))
    words = [sys.executable, "-m", "gpu_mem_calculator", "calculate", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, preexec_fn=_limited)
    refused = done.returncode == 2 and "are estimated; use fewer or smaller layers" in done.stderr
    assert refused or (done.returncode, done.stderr) == (0, "")
