"""Measured against predicted, part by part: measured runs and logs, as tools print them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.advice.diagnosis.crash import WITHIN_TRAINING
from gpu_mem_calculator.advice.diagnosis.diagnose import diagnose
from gpu_mem_calculator.advice.diagnosis.diagnosis import PrintedPart
from gpu_mem_calculator.advice.diagnosis.part_rows import part_rows
from gpu_mem_calculator.report.diagnosis import diagnosis_lines
from gpu_mem_calculator.report.lines import plain
from gpu_mem_calculator.tools.logs.read import rows
from tests.conftest import ROOT

TRUTH = ROOT / "tests" / "ground_truth"
DIED = [json.loads(one) for one in (Path(__file__).parent / "died.jsonl").read_text().splitlines()]
# Programs that hold more than their run says: one loads the whole model before it is sharded, one
# keeps the logits of the step before.
HOLD_MORE = {"start-up-1-fsdp2", "second-step-4-accelerate"}
VLLM = """$ vllm serve Qwen/Qwen3-8B --max-model-len 8192 --gpu-memory-utilization 0.9
INFO [api_server.py:1805] vLLM API server version 0.10.2
INFO [gpu_model_runner.py:1953] Model loading took {weights} GiB and 12.7 seconds
INFO [gpu_worker.py:276] Available KV cache memory: {pool} GiB
INFO [gpu_worker.py:391] Free memory on device ({free}/79.18 GiB) on startup. Desired GPU memory\
 utilization is (0.9, 71.26 GiB). Actual usage is {weights} GiB for weight, 5.62 GiB for peak\
 activation, 0.13 GiB for non-torch memory, and 0.55 GiB for CUDAGraph memory.
"""
LLAMACPP = """$ llama-server -m Qwen3-8B-Q4_K_M.gguf -c 32768 -ngl 99 -fa on
load_tensors: offloaded 37/{layers} layers to GPU
load_tensors:        CUDA0 model buffer size =  4455.34 MiB
load_tensors:   CPU_Mapped model buffer size =   333.84 MiB
llama_kv_cache_unified:      CUDA0 KV buffer size =  {pool} MiB
"""


def found(text: str, run: Any = None) -> dict[tuple[str, str], PrintedPart]:
    """The parts of a text, by name and place."""
    return {(one.name, one.where): one for one in diagnose(text, run).parts}


def test_a_servers_parts_stand_beside_the_estimate() -> None:
    """None differs where it ran as given."""
    parts = found(VLLM.format(weights="15.27", pool="50.3", free="78.58"))
    assert not any(one.beyond for one in parts.values()), parts
    assert {name for name, _ in parts} == {
        "weights",
        "activations",
        "outside torch",
        "CUDA graphs",
        "KV pool",
        "free at the start",
    }
    weights = parts["weights", ""]
    assert weights.line == 3
    assert weights.printed == pytest.approx(weights.estimated, rel=0.001)


@pytest.mark.parametrize(
    ("figures", "name", "said"),
    [
        ({"weights": "7.90"}, "weights", "another dtype or quantization"),
        ({"pool": "31.0"}, "KV pool", "another process is on the card"),
        ({"free": "60.10"}, "free at the start", "another process held the rest"),
        ({"weights": "30.50", "pool": "35.0"}, "KV pool", "the other parts are larger by as much"),
    ],
)
def test_a_part_beyond_the_error_is_evidence(figures: dict[str, str], name: str, said: str) -> None:
    """With what it means."""
    text = VLLM.format(**{"weights": "15.27", "pool": "50.3", "free": "78.58", **figures})
    evidence = [one for one in diagnose(text).evidence if one.startswith(f"{name}:")]
    assert len(evidence) == 1
    assert said in evidence[0]


def test_buffers_are_compared_by_device() -> None:
    """A card's are judged; what is mapped in host RAM is told."""
    parts = found(LLAMACPP.format(layers=37, pool="4608.00"))
    assert not any(one.beyond for one in parts.values()), parts
    assert parts["KV pool", "CUDA0"].printed == parts["KV pool", "CUDA0"].estimated
    assert parts["layers on the card", ""].estimated == 37
    parts = found(LLAMACPP.format(layers=41, pool="9216.00"))
    assert "a longer context" in parts["KV pool", "CUDA0"].means
    assert "the model has 41" in parts["layers on the card", ""].means


def test_buffers_of_one_device_are_added() -> None:
    """A window's and those of full attention; split files."""
    text = LLAMACPP.format(layers=37, pool="4000.00")
    text += "llama_kv_cache_unified:      CUDA0 KV buffer size =   608.00 MiB\n"
    assert found(text)["KV pool", "CUDA0"].printed == 4608 * 2**20


def test_what_depends_on_a_card_that_is_not_known_has_no_estimate() -> None:
    """The weights do not."""
    text = VLLM.format(weights="15.27", pool="50.3", free="78.58").rpartition("INFO")[0]
    parts = found(text)
    assert parts["weights", ""].estimated is not None
    assert parts["KV pool", ""].estimated is None


def test_the_cards_memory_is_told_part_by_part() -> None:
    """Of every third run that died: no more is allocated than the phase has at most, but where the
    program held more than its run says.
    """
    held = set()
    for case in (one for at, one in enumerate(DIED) if at % 3 == 0 or one["id"] in HOLD_MORE):
        parts = {one.name: one for one in diagnose(case["text"], case["config"]).parts}
        assert {"allocated", "reserved but unallocated", "outside torch", "free"} <= parts.keys()
        assert not parts["outside torch"].beyond
        if parts["allocated"].beyond:
            held.add(case["id"])
    assert held == HOLD_MORE


MEASURED = [
    row
    for row in map(json.loads, (TRUTH / "engines.jsonl").read_text().splitlines())
    if row["group"] == "deepspeed" and "phases" in row
]
NAMES = {"fwd": "Engine after forward", "bwd": "Engine after backward", "opt": "Engine after step"}


def _printed(row: dict[str, Any]) -> str:
    """The phases of a measured run as DeepSpeed prints them."""
    begin = "[2024-05-02 10:11:12,300] [INFO] [utils.py:800:see_memory_usage]"
    return "".join(
        f"{begin} {NAMES[name.rpartition('.')[2]]}\n"
        f"{begin} MA {one['start_next_bytes'] / 2**30:.2f} GB         Max_MA"
        f" {one['peak_bytes'] / 2**30:.2f} GB         CA {one['reserved_bytes'] / 2**30:.2f} GB"
        f"         Max_CA {one['reserved_bytes'] / 2**30:.0f} GB \n"
        for name, one in row["phases"].items()
        if name.rpartition(".")[2] in NAMES
    )


@pytest.mark.parametrize("row", MEASURED[::3], ids=lambda row: row["id"])
def test_phases_of_a_log_are_phases_of_the_estimate(row: dict[str, Any]) -> None:
    """Measured runs of DeepSpeed, as it prints them with memory_breakdown."""
    parts = [one for one in diagnose(_printed(row), row["config"]).parts if "allocated" in one.name]
    assert parts
    assert all(one.estimated is not None for one in parts)
    assert not [one for one in parts if one.beyond]


def test_a_phase_that_is_larger_is_evidence() -> None:
    """The same lines with a smaller run."""
    row = MEASURED[0]
    small = {**row["config"], "training": {**row["config"]["training"], "seq_len": 128}}
    assert any("Engine after forward" in one for one in diagnose(_printed(row), small).evidence)


def test_the_table_is_on_the_screen_and_in_no_row_too_long() -> None:
    """What differs first, where there are many."""
    text = VLLM.format(weights="30.50", pool="38.0", free="60.10")
    shown = plain(diagnosis_lines(diagnose(text)))
    assert "part by part" in shown
    assert all(len(one) <= 80 for one in shown.splitlines())


def test_rows_name_lines_that_are_read() -> None:
    """And tools, with their source."""
    known = {(one.what, name) for one in rows() for name in one.pattern.kinds}
    known |= {(one.what, name) for one in rows() for more in one.more for name in more.kinds}
    for row in part_rows("server"):
        for what, *names in (*row["lines"], *row.get("whole", ())):
            assert {(what, one) for one in names} <= known, row["name"]
    tools = {one.tool for one in rows()}
    assert all(row["tool"] in tools and row["source"] for row in part_rows("phase"))


def test_the_error_of_training_is_that_of_measured_runs() -> None:
    """19 of 20 runs of docs/scored.json are in groups whose worst is below it."""
    figures = json.loads((ROOT / "docs" / "scored.json").read_text())["figures"]
    groups = [one["allocated"] for one in figures.values() if one.get("allocated")]
    inside = sum(count for count, _, worst in groups if worst < WITHIN_TRAINING)
    assert inside >= 0.95 * sum(count for count, _, _ in groups)
