"""The walks over every family's blocks against an H200 that ran transformers 5.17.0.

`traces.json` has, for a small model of four layers, the bytes that one layer keeps for backward
and the peaks of forward and of backward, without parameters. A row's tolerance is today's error,
rounded up; a comment gives the reason for each one above the rule's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest

from gpu_mem_calculator.ledger.ledger import ACT, GRAD, TEMP, Ledger
from gpu_mem_calculator.ledger.mesh import Mesh
from gpu_mem_calculator.models.families import read_config
from gpu_mem_calculator.pytorch.modelling.huggingface.layer import layer_walk
from gpu_mem_calculator.run.run import Run
from gpu_mem_calculator.training.engines import engine
from gpu_mem_calculator.training.engines.pytorch_ddp.options import PRECISIONS
from gpu_mem_calculator.training.step.activations import setting, walks
from gpu_mem_calculator.training.step.layer_groups import layer_groups
from tests.conftest import SMALL_LLAMA

DATA = Path(__file__).parent / "data" / "traces.json"
ROWS: list[dict[str, Any]] = json.loads(DATA.read_text())["runs"]

RULE = (0.05, 0.1, 0.1)  # percent: kept by a layer, forward's peak, backward's peak
TOLERANCES: dict[str, tuple[float, float, float]] = {
    # the gradient of learnt positions is counted with the tied head's, too early
    "gpt2": (0.05, 0.1, 0.5),
    "gpt_neo": (0.05, 0.1, 0.3),
    "opt": (0.05, 0.4, 2.8),
    "opt-fp32": (0.05, 1.0, 3.2),
    "opt-bf16_mixed": (0.05, 0.1, 3.5),
    "opt-350m": (0.05, 0.9, 2.5),  # and project_in keeps its input
    # FalconLinear adds its bias in a separate step; eager ALiBi names one more map
    "falcon-rw sdpa": (0.05, 0.1, 3.5),
    "falcon-rw eager": (0.05, 4.6, 0.1),
    "falcon-7b": (0.05, 1.0, 1.1),
    "falcon-40b eager": (0.05, 0.5, 0.1),
    # tensors that Python names while an eager map is computed
    "gpt_neox eager": (0.05, 2.0, 0.6),
    "phi eager": (0.05, 0.6, 0.1),
    "mpt": (0.05, 0.3, 0.3),
    # one of two eager masks outlives the layers
    "qwen2_moe eager": (0.05, 0.5, 0.1),
    "gemma3_text eager": (0.05, 0.5, 0.1),
    "llama4_text eager": (0.05, 0.4, 0.1),
    # small tensors of a scan, and its outputs that wait in a list
    "mamba2": (0.5, 0.4, 0.4),
    "jamba-mamba": (0.2, 1.3, 0.1),
    # the math path in forward; its peak is in backward
    "starcoder2-fp32": (0.05, 2.9, 0.1),
}


def tolerance(row: dict[str, Any]) -> tuple[float, float, float]:
    """A row's tolerances in percent: its own, its family's, or the rule's."""
    name, attention = row["name"], row["attention"]
    return TOLERANCES.get(f"{name} {attention}", TOLERANCES.get(name, RULE))


def resolved(row: dict[str, Any], **sizes: Any) -> Run:
    """The row's run on one GPU."""
    return Run(
        arch=read_config(row["config"]),
        mesh=Mesh(),
        micro_batches=1,
        precision=row["precision"],
        attention=row["attention"],
        **{"batch": row["batch"], "seq": row["seq"], **sizes},
    )


def kept_by_a_layer(run: Run) -> float:
    """Bytes that a layer keeps for backward, the mean over all layers."""
    groups = layer_groups(run, 0, len(run.arch.layers))
    walked = walks(run, setting(run, PRECISIONS[run.precision]), groups)
    total = sum(w.saved_bytes * b.count for w, b in zip(walked.layers, groups, strict=True))
    return float(total) / len(run.arch.layers)


def peak(ledger: Ledger, phase: str) -> Any:
    """Bytes at the peak of a phase: activations, gradients and workspaces."""
    instants = [
        sum(e.bytes * e.live.get(i.name, 0) for e in ledger.entries if e.kind in (ACT, GRAD, TEMP))
        for i in ledger.instants
        if i.phase == phase
    ]
    return numpy.maximum.reduce(instants)


def error(ours: float, measured: float) -> float:
    """The error in percent of the measured bytes."""
    return 100 * (float(ours) / measured - 1)


def label(row: dict[str, Any]) -> str:
    """A row's name in the report."""
    return f"{row['name']}-{row['attention']}-{row['seq']}"


@pytest.mark.parametrize("row", ROWS, ids=map(label, ROWS))
def test_a_layer_keeps_what_was_measured(row: dict[str, Any]) -> None:
    """The bytes that a layer keeps for backward are those measured on the card."""
    percent = error(kept_by_a_layer(resolved(row)), row["saved_bytes_per_layer"])
    assert abs(percent) <= tolerance(row)[0], percent


@pytest.mark.parametrize("row", ROWS, ids=map(label, ROWS))
def test_the_peaks_are_those_that_were_measured(row: dict[str, Any]) -> None:
    """The peaks of forward and backward are those measured on the card."""
    ledger = engine("pytorch_ddp").ledger(resolved(row))
    _, forward, backward = tolerance(row)
    percent = error(peak(ledger, "forward"), row["forward_peak_bytes"])
    assert abs(percent) <= forward, f"forward {percent}"
    percent = error(peak(ledger, "backward"), row["backward_peak_bytes"])
    assert abs(percent) <= backward, f"backward {percent}"


@pytest.mark.parametrize("name", ["llama", "gpt_oss", "deepseek_v3", "falcon-7b", "mpt", "mamba2"])
def test_arrays_give_what_their_elements_give(name: str) -> None:
    """A walk over an array of batch sizes is the walks over its elements."""
    row = next(r for r in ROWS if r["name"] == name)
    ledger = engine("pytorch_ddp").ledger
    together = peak(ledger(resolved(row, batch=numpy.array([1, 3]))), "backward")
    alone = [int(peak(ledger(resolved(row, batch=n)), "backward")) for n in (1, 3)]
    assert together.tolist() == alone


@pytest.mark.parametrize(
    ("family", "key", "noises"),
    [
        ("mixtral", "router_jitter_noise", ["moe.noise"]),
        ("phimoe", "input_jitter_noise", ["moe.noise", "router.noise"]),
    ],
)
def test_noise_on_the_input_of_experts_is_saved(family: str, key: str, noises: list[str]) -> None:
    """Each is as large as the input; only SparseMixer has separate noise for its router."""
    config = {**SMALL_LLAMA, "model_type": family, "num_local_experts": 4, "sliding_window": None}
    for level, expected in ((0.0, []), (0.01, noises)):
        row = {"config": {**config, key: level}, "precision": "bf16_pure", "attention": "sdpa"}
        run = resolved({**row, "batch": 2, "seq": 512})
        saved = layer_walk(setting(run, PRECISIONS["bf16_pure"]), run.arch.layers[0]).saved
        found = {name: size for name, size in saved if "noise" in name}
        assert found == dict.fromkeys(expected, 2 * 512 * 256 * 2)
