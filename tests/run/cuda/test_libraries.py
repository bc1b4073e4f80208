"""GPU memory outside torch, compared with every measured run that has it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpu_mem_calculator import catalog
from gpu_mem_calculator.lab.backtest.predict import outside_bytes
from gpu_mem_calculator.lab.jobs.megatron_defaults import with_measured_defaults
from gpu_mem_calculator.ledger.units import MIB
from gpu_mem_calculator.run.cuda.chips import CHIPS
from gpu_mem_calculator.run.cuda.libraries import context_bytes, host_libraries
from gpu_mem_calculator.run.cuda.runtimes import runtime_notes
from gpu_mem_calculator.runfile.resolve.hardware import DEFAULT_CHIP
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.resolve.resolved_run import ResolvedRun
from gpu_mem_calculator.tools.read import read
from tests.conftest import measured_runs, small_run

FILES = (
    "engines",
    "families",
    "host",
    "options",
    "random",
    "runs",
    "serving_transformers",
    "unseen",
)
PAGE = 2 * MIB
# Pinned host memory was not recorded in these, and takes page tables on the GPU.
UNRECORDED = {
    "ds-z2-tinyllama-w8-offload",
    "ds-z1-tinyllama-w8-offload",
    "ds-z3-llama1b-w8-offboth",
    "ds-z3-llama2-7b-w8-offopt",
}
# 4 bits and few rows: 11 MiB less than all others have, unexplained.
OUTLIERS = {"infer-llama8b-nf4-decode"}
H200_CONTEXT = 552_402_944
# MiB of a context before any work: totals less the free memory that ollama, llama.cpp or TensorRT
# print, and what torch says of another process (the first of an RTX 3090).
CONTEXTS = (
    ("t4", 103),
    ("v100-32gb-sxm", 310),
    ("v100-16gb-pcie", 311),
    ("a100-40gb-pcie", 423),
    ("a100-80gb-sxm", 427),
    ("a40", 268.4),
    ("rtx-3090", 256),
    ("rtx-3090", 269),
    ("rtx-4090", 391.5),
    ("rtx-5090", 513.4),
    ("h100-80gb-sxm", 514),
    ("h100-80gb-sxm", 527),
)


def resolved(config: dict[str, Any]) -> ResolvedRun:
    """A run file as a run."""
    return resolve(read(config).file)


def parts(config: dict[str, Any]) -> dict[str, int]:
    """MiB of each part outside torch in a run, by name."""
    return {name: size // MIB for name, size, _ in resolved(config).outside_torch}


def page_tables(row: dict[str, Any]) -> int:
    """A 512th of the pinned host memory of a run, in whole pages."""
    return int(row["environment"].get("host_pinned_bytes", 0)) // 512 // PAGE * PAGE


@pytest.mark.parametrize("name", FILES)
def test_the_parts_add_up_to_what_nvidia_smi_shows(name: str) -> None:
    """Context, kernels, handles, attention, streams and NCCL: within 4 MiB of 0.7 to 1.4 GiB."""
    compared = 0
    for row in measured_runs(name):
        measured, around = row["measured"], row.get("environment", {})
        if "device_bytes" not in measured or "reserved_bytes" not in measured:
            continue
        run = resolved(with_measured_defaults(row["config"], around))
        if run.run.optimizer == "paged_adamw_8bit" or row["id"] in UNRECORDED | OUTLIERS:
            continue
        outside = outside_bytes(run.outside_torch, around.get("process_group")) + page_tables(row)
        error = measured["device_bytes"] - measured["reserved_bytes"] - outside
        assert abs(error) <= 4 * MIB, (row["id"], error / MIB)
        compared += 1
    assert compared > 20


def test_every_context_is_the_same() -> None:
    """In every run on an H200."""
    sizes = {
        row["measured"].get("context_bytes", H200_CONTEXT)
        for name in FILES
        for row in measured_runs(name)
    }
    assert sizes == {H200_CONTEXT}
    assert context_bytes(resolved(small_run(hardware={"gpu": "h200"})).run) == H200_CONTEXT


@pytest.mark.parametrize(("card", "mib"), CONTEXTS)
def test_a_context_grows_with_the_multiprocessors(card: str, mib: float) -> None:
    """Before any work: within 4.5 % of published logs."""
    size = context_bytes(resolved(small_run(hardware={"gpu": card})).run)
    assert size / MIB == pytest.approx(mib, rel=0.045)


def test_a_card_that_is_not_known_has_the_context_that_was_measured() -> None:
    """Its multiprocessors are not known."""
    run = resolved(small_run(hardware={"gpu": "mi300x"})).run
    assert context_bytes(run) == H200_CONTEXT


def test_a_small_card_loads_less() -> None:
    """A full T4: by torch's message 115 to 164 MiB were outside torch."""
    outside = parts(small_run(gpus=1, hardware={"gpu": "t4"}))
    assert 115 <= sum(outside.values()) <= 180, outside


def test_paged_states_are_on_the_card() -> None:
    """bitsandbytes' managed memory is where the GPU uses it: two bytes a parameter, in 128 MiB."""
    rows = {row["id"]: row for name in ("host", "options") for row in measured_runs(name)}
    for row in rows.values():
        run = resolved(row["config"])
        if run.run.optimizer != "paged_adamw_8bit":
            continue
        measured = row["measured"]
        outside = outside_bytes(run.outside_torch, "none")
        states = measured["device_bytes"] - measured["reserved_bytes"] - outside
        assert 0 <= states - 2 * run.run.arch.num_parameters < 128 * MIB, row["id"]


def test_attention_in_16_bits_loads_cudnn_on_hopper() -> None:
    """Not eager attention, not fp32, and not a GPU on which torch prefers flash."""
    cudnn = "cuDNN attention"
    assert parts(small_run(gpus=1))[cudnn] == 16
    assert cudnn not in parts(small_run(gpus=1, training={"attention": "eager"}))
    assert cudnn not in parts(small_run(gpus=1, training={"precision": "fp32"}))
    assert cudnn not in parts(small_run(gpus=1, hardware={"gpu": "a100-80gb-sxm"}))


def test_streams_are_counted_once() -> None:
    """FSDP and ZeRO create CUDA streams, and NCCL then uses the same pools."""
    plain, sharded = parts(small_run(gpus=2)), parts(small_run("fsdp", gpus=2))
    assert "CUDA streams" not in plain
    assert sharded["CUDA streams"] == plain["NCCL library"] - sharded["NCCL library"] == 70


@pytest.mark.parametrize(
    ("engine", "there"),
    [
        ({"zero_stage": 0}, False),
        ({"zero_stage": 1}, True),
        ({"zero_stage": 3}, True),
        ({"zero_stage": 3, "overlap_comm": False}, False),
    ],
)
def test_zero_creates_streams_for_what_it_overlaps(engine: dict[str, Any], there: bool) -> None:
    """Stage 0 has none, stage 3 only where communication overlaps."""
    assert ("CUDA streams" in parts(small_run("deepspeed", engine=engine))) == there


def test_host_libraries_are_measured_for_each_engine() -> None:
    """Within a quarter of every training run without offload, within 5 % on average."""
    errors = []
    for row in measured_runs("options"):
        run, measured = resolved(row["config"]), row["measured"]
        if "host_bytes" not in measured or run.run.options.get("cpu_offload"):
            continue
        nccl = row["environment"]["process_group"].startswith("nccl")
        _, size, _ = host_libraries(run.run, run.engine, nccl=nccl)
        errors.append(abs(size / measured["host_bytes"] - 1))
    assert len(errors) > 140
    assert max(errors) < 0.26
    assert sum(errors) / len(errors) < 0.055


def test_every_card_has_a_row() -> None:
    """A card without one would be taken as an H200 without a word."""
    known = {row.get("compute_capability", DEFAULT_CHIP[0]) for row in catalog.rows("gpus")}
    missing = sorted(known - CHIPS.keys())
    assert not missing, f"run/cuda/libraries.py: CHIPS has no row for {missing}"


def test_an_unknown_capability_is_said() -> None:
    """A card of the user's own may have one."""
    run = resolved(small_run()).run
    assert not list(runtime_notes(run))
    (note,) = runtime_notes(replace(run, compute_capability="99.0"))
    assert "of compute capability 99.0 nothing is known; it is taken as an H200's" in note
