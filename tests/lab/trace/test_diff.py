"""Two ledgers of one run, compared."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.lab.trace.diff import (
    ENDS,
    LAYERS,
    REST,
    DiffRow,
    difference,
    place_of_estimate,
    place_of_trace,
)
from gpu_mem_calculator.ledger.ledger import ACT, PARAM, TEMP, Entry, Instant, Ledger
from gpu_mem_calculator.ledger.source import ARITHMETIC, code

MIB = 2**20
BACKWARD = Instant(name="later.bwd", phase="backward", title="backward of the loss")
FORWARD = Instant(name="fwd", phase="forward", title="forward")
ONLY_FIRST = Instant(name="first.bwd", phase="backward", title="first gradient", step="first")


def entry(name: str, kind: str, size: int, *at: str, line: str = "") -> Entry:
    """Bytes that are alive once at some instants."""
    source = code(line) if line else ARITHMETIC
    return Entry(name=name, kind=kind, bytes=size, live=dict.fromkeys(at, 1), source=source)


ESTIMATE = Ledger(
    (FORWARD, ONLY_FIRST, BACKWARD),
    (
        entry("parameters", PARAM, 100 * MIB, "fwd", "first.bwd", "later.bwd"),
        entry("dense layers: kept for backward", ACT, 60 * MIB, "first.bwd", "later.bwd"),
        entry("final norm, logits and loss", ACT, 30 * MIB, "later.bwd"),
        entry("buckets", TEMP, 500 * MIB, "first.bwd"),
    ),
)
TRACE = Ledger(
    (
        Instant(name="s0.a0.fwd", phase="forward", title="step 1: forward"),
        Instant(name="s1.a0.bwd", phase="backward", title="step 2: backward"),
    ),
    (
        entry("model.layers.*.mlp: mm", ACT, 40 * MIB, "s1.a0.bwd"),
        entry("model.layers.*: add", ACT, 25 * MIB, "s1.a0.bwd"),
        entry("lm_head: mm", ACT, 28 * MIB, "s1.a0.bwd"),
        entry("randint", ACT, 2 * MIB, "s1.a0.bwd", line="/x/jobs/model.py:70"),
        entry("model.layers.*.mlp: empty", PARAM, 100 * MIB, "s0.a0.fwd", "s1.a0.bwd"),
    ),
)
FOUND = difference(ESTIMATE, TRACE, "s1.a0.bwd", {"s0.a0.fwd": 90 * MIB})


def test_the_same_phase_is_compared() -> None:
    """The estimate's highest instant of that phase, and none that only a first step has."""
    assert (FOUND.trace_instant, FOUND.estimate_instant) == (
        "step 2: backward",
        "backward of the loss",
    )


def test_phases_have_the_estimate_s_peaks() -> None:
    """A phase's peak is put beside the one that the trace has."""
    (row,) = FOUND.phases
    assert (row.name, row.difference_bytes) == ("s0.a0.fwd", -10 * MIB)


def test_kinds_are_sorted_by_difference() -> None:
    """What differs most comes first; kinds that neither has are left out."""
    assert [(k.row.name, k.row.difference_bytes) for k in FOUND.kinds] == [
        (ACT, -5 * MIB),
        (PARAM, 0),
    ]


def test_a_kind_names_its_entries() -> None:
    """On both sides, largest first."""
    activations = FOUND.kinds[0]
    assert [side.name for side in activations.estimate] == [
        "dense layers: kept for backward",
        "final norm, logits and loss",
    ]
    assert activations.trace[0].name == "model.layers.*.mlp: mm"


def test_places_are_compared() -> None:
    """Activations inside the layers, around them, and of the inputs."""
    assert FOUND.places == (
        DiffRow(LAYERS, 60 * MIB, 65 * MIB),
        DiffRow(ENDS, 30 * MIB, 28 * MIB),
        DiffRow(REST, 0, 2 * MIB),
    )


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("moe layers: at work", LAYERS),
        ("gradient of the layer's input", LAYERS),
        ("final norm, logits and loss", ENDS),
        ("embedding: output", ENDS),
        ("loss: kept for backward", ENDS),
        ("rotary tables", REST),
        ("attention masks", REST),
    ],
)
def test_places_of_an_estimate(name: str, place: str) -> None:
    """By the name of an entry."""
    assert place_of_estimate(name) == place


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("model.layers.*.self_attn.q_proj: mm", LAYERS),
        ("transformer.h.*: add", LAYERS),
        ("lm_head: mm", ENDS),
        ("model.norm: mul", ENDS),
        ("transformer.wte: embedding", ENDS),
        ("_log_softmax", ENDS),
        ("base_model.model: nll_loss_forward", ENDS),
        ("model.rotary_emb: cos", REST),
        ("model: arange", REST),
    ],
)
def test_places_of_a_trace(name: str, place: str) -> None:
    """By the module of an entry."""
    assert place_of_trace(name) == place
