"""Windows and WSL: the driver spills into the host's memory, and a run goes on."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator import estimate
from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.estimates.fit_verdict import FITS, SHORT, UNSURE
from gpu_mem_calculator.estimates.verdict_words import verdict_line
from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.report.longest_sequence import failure_words
from gpu_mem_calculator.runfile.config import GPUConfig
from gpu_mem_calculator.runfile.resolve.hardware import SPILLING, find_hardware

RUN = {"model": {"name": "qwen2.5-1.5b"}, "training": {"seq_len": 1024, "batch_size": 1}}


def _on(system: str | None, **hardware: Any) -> dict[str, Any]:
    section = {"gpu": "rtx-4090", "os": system, **hardware}
    return {**RUN, "hardware": {key: one for key, one in section.items() if one is not None}}


@pytest.mark.parametrize("system", SPILLING)
def test_a_run_that_finds_no_room_goes_on(system: str) -> None:
    """It does not fit, and it is never said to run out of memory."""
    found = full_estimate(_on(system))
    result = found.result
    assert (result.verdict, result.fails_at) == (SHORT, None)
    assert result.spills_bytes > GIB
    assert verdict_line(result).startswith("spills: needs")
    assert "GiB in shared memory, which is slower" in verdict_line(result)
    words = " ".join(failure_words(result))
    assert "it runs" in words
    assert "out of memory" not in f"{result} {words}"


@pytest.mark.parametrize(
    ("system", "hardware"), [("linux", {}), (None, {}), ("windows", {"node_memory_gb": 8})]
)
def test_elsewhere_it_dies(system: str | None, hardware: dict[str, Any]) -> None:
    """On Linux, and where half of the host's memory is less than what spills."""
    result = estimate(_on(system, **hardware))
    assert (result.verdict, result.spills_bytes) == (SHORT, 0)
    assert "spills" not in verdict_line(result)


@pytest.mark.parametrize(
    ("system", "said", "gib"),
    [("windows", None, 64), ("wsl", None, 32), ("wsl", ".wslconfig memory=64GB", 64)],
)
def test_wsl_has_half_of_the_hosts_memory(system: str, said: str | None, gib: int) -> None:
    """Unless somebody says what it has."""
    config = GPUConfig(gpu="4090", os=system, node_memory_gb=64, node_memory_read_from=said)  # type: ignore[arg-type]
    assert find_hardware(config, None).node_bytes == gib * GIB


def test_what_windows_keeps_is_open() -> None:
    """Until nvidia-smi says what is free."""
    small = {"model": {"name": "qwen2.5-0.5b"}, "training": {"seq_len": 512, "batch_size": 1}}
    roomy = estimate({**small, "hardware": {"gpu": "rtx-3060-12gb", "os": "windows"}})
    section = {"gpu": "rtx-3060-12gb", "os": "windows", "gpu_memory_bytes": 11 * GIB}
    tight = estimate({**small, "hardware": section})
    assert (roomy.verdict, tight.verdict) == (FITS, UNSURE), (
        verdict_line(roomy),
        verdict_line(tight),
    )
    assert "open: Windows" in verdict_line(tight)
    held = estimate({**small, "hardware": {**section, "used_memory_bytes": 0}})
    assert held.verdict == FITS


def test_other_makers_and_unified_cards_do_not_spill() -> None:
    """The policy is of NVIDIA's driver."""
    for name in ("rx-7900-xtx", "strix-halo"):
        assert find_hardware(GPUConfig(gpu=name, os="windows"), None).spilling is None
