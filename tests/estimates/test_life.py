"""The phases of a run's life, and the verdict on the memory of its node."""

from __future__ import annotations

import pytest

from gpu_mem_calculator import estimate
from gpu_mem_calculator.estimates.fit_verdict import FITS, SHORT, UNSURE
from gpu_mem_calculator.estimates.node import FIRST, STEADY, PhaseMemory, node_memory, on_node
from gpu_mem_calculator.estimates.verdict_words import verdict_line
from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.run.phases import (
    EVALUATION,
    GENERATING,
    LOADING,
    MERGING,
    RESUMING,
    SAVING,
    SAVING_OPTIMIZER,
    STARTUP,
)
from gpu_mem_calculator.runfile.text.errors import InputError

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
    assert ("host RAM" in verdict_line(found)) == (taken > has / 2)
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
    steps = [LOADING, STARTUP, FIRST, STEADY, EVALUATION]
    assert [one.name for one in found.phases if one.asked] == [*steps, SAVING, SAVING_OPTIMIZER]
    evaluation = next(one for one in found.phases if one.name == EVALUATION)
    assert evaluation.gpu_bytes == max(one.gpu_bytes for one in found.phases)
    assert evaluation.gpu_bytes == found.allocated_bytes


def test_a_checkpoint_takes_host_memory_on_rank_0() -> None:
    """The whole model's tensors, once for a node; resuming on one GPU holds the states there."""
    model = {"model": {"name": "llama3.2-1b"}, "training": {"precision": "fp32"}}
    found = estimate({**model, "hardware": {"gpu": "h200", "num_gpus": 8}})
    phases = {one.name: one for one in found.phases}
    beside = phases[SAVING].host_bytes - phases[STEADY].host_bytes
    assert beside == 4 * found.num_parameters
    alone = {one.name: one for one in estimate({**model, "hardware": {"gpu": "h200"}}).phases}
    states = alone[RESUMING].host_bytes - alone[STARTUP].host_bytes
    assert states == pytest.approx(8 * found.num_parameters, rel=1e-3)
    assert not alone[RESUMING].asked


def test_adapters_are_merged_one_projection_after_the_other() -> None:
    """The product of a projection's adapters in fp32, and the same times the scale."""
    lora = {"r": 8, "target_modules": ["q_proj"], "adapter_dtype": "fp32"}
    run = {"model": {"name": "llama3.2-1b"}, "training": {"lora": lora}}
    phases = {one.name: one for one in estimate(run).phases}
    assert phases[MERGING].gpu_bytes - phases[SAVING].gpu_bytes == 2 * 4 * 2048 * 2048


def test_a_program_generates_beside_its_states() -> None:
    """A cache of a longer answer is larger; without one each pass is over the whole sequence."""

    def generated(**keys: object) -> int:
        run = {"model": {"name": "llama3.2-1b"}, "training": {"generates": keys}}
        found = estimate({**run, "hardware": {"gpu": "h200"}})
        phases = {one.name: one for one in found.phases}
        assert phases[GENERATING].gpu_bytes > phases[RESUMING].gpu_bytes
        return phases[GENERATING].gpu_bytes

    short = generated(batch_size=4, prompt=64, new_tokens=2000)
    assert generated(batch_size=4, prompt=64, new_tokens=4000) - short > 200 * 2**20
    assert generated(batch_size=4, prompt=64, new_tokens=2000, use_cache=False) != short


def test_a_generation_is_refused_where_it_is_not_modelled() -> None:
    """With sharded weights; a program has a limit instead."""
    run = {"model": {"name": "llama3.2-1b"}, "hardware": {"gpu": "h200", "num_gpus": 8}}
    with pytest.raises(InputError, match="generates is not modelled with engine 'fsdp'"):
        estimate({**run, "training": {"generates": {}}, "engine": {"type": "fsdp"}})
    program = {
        "tool": "transformers.Trainer",
        "args": {"fsdp": "full_shard"},
        "data": {"seq_len": 512, "generates": {"prompt": 64}},
    }
    keys = [one.key for one in estimate({**run, "program": program}).limits]
    assert "program.data.generates" in keys
