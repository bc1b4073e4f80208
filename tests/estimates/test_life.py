"""The phases of a run's life, and the verdict on the memory of its node."""

from __future__ import annotations

import pytest

from gpu_mem_calculator import estimate
from gpu_mem_calculator.estimates.fit_verdict import FITS, SHORT, UNSURE
from gpu_mem_calculator.estimates.life import FIRST, STEADY, PhaseMemory, node_memory, on_node
from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.run.phases import EVALUATION, LOADING, STARTUP

LOADS = PhaseMemory(name=LOADING, gpu_bytes=0, host_bytes=100 * GIB, process_bytes=0, file_bytes=9)
OFFLOADS = {
    "model": {"name": "llama3.1-8b"},
    "engine": {"type": "deepspeed", "zero_stage": 3, "offload_optimizer": "cpu"},
    "hardware": {"gpu": "h200", "num_gpus": 8},
}


@pytest.mark.parametrize(
    ("has", "word"), [(99, SHORT), (100, UNSURE), (119, UNSURE), (121, FITS), (None, None)]
)
def test_a_node_with_less_does_not_fit(has: int | None, word: str | None) -> None:
    """Within the error of the estimate the answer is open; pages of files do not count."""
    node = node_memory([LOADS], None if has is None else has * GIB)
    assert node.verdict == word
    assert node.bytes_per_node == 100 * GIB


@pytest.mark.parametrize(
    ("card", "node", "both"),
    [(FITS, SHORT, SHORT), (FITS, UNSURE, UNSURE), (SHORT, FITS, SHORT), (UNSURE, SHORT, SHORT)],
)
def test_the_worse_of_card_and_node_decides(card: str, node: str, both: str) -> None:
    """A run needs both."""
    has = {SHORT: 50, UNSURE: 110, FITS: 200}[node] * GIB
    assert on_node(card, node_memory([LOADS], has)) == both


@pytest.mark.parametrize("has", [64, 150, 170, 400])
def test_what_offloading_takes_decides(has: int) -> None:
    """The verdict, the summary and the figure say the same."""
    found = estimate({**OFFLOADS, "hardware": {**OFFLOADS["hardware"], "node_memory_gb": has}})
    assert found.host is not None
    taken = found.host_bytes_per_node / GIB
    assert found.verdict == (SHORT if taken > has else FITS if taken * 1.2 <= has else UNSURE)
    assert ("host RAM" in found.summary) == (taken > has / 2)
    assert found.fits_on_gpu == (found.verdict == FITS)


def test_unknown_memory_of_a_node_is_named_where_it_is_much() -> None:
    """Above 64 GiB."""
    found = estimate(OFFLOADS)
    assert found.host is not None
    assert found.host.verdict is None
    assert any("of host RAM a node" in one for one in found.decisive)


def test_the_phases_are_in_order() -> None:
    """Loading, start-up, the first step, the others, and an evaluation where there is one."""
    run = {"model": {"name": "gpt2"}, "training": {"evaluation": {"batch_size": 64}}}
    found = estimate(run)
    assert [one.name for one in found.phases] == [LOADING, STARTUP, FIRST, STEADY, EVALUATION]
    evaluation = found.phases[-1]
    assert evaluation.gpu_bytes == max(one.gpu_bytes for one in found.phases)
    assert evaluation.gpu_bytes == found.allocated_bytes
