"""What an entry's tensors are: as many bytes as the entry has, one by one."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.ledger.ledger import GPU, PARAM, Entry, Ledger
from gpu_mem_calculator.ledger.source import ARITHMETIC
from gpu_mem_calculator.pytorch.autograd.events import BlockEvents
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.step.block_events import BlockRun
from gpu_mem_calculator.training.step.cycles import KeptNumbers
from gpu_mem_calculator.training.step.entry_writer import tensor_bytes
from gpu_mem_calculator.training.step.stream_writer import StreamWriter
from tests.conftest import small_run
from tests.properties.test_engines import RUNS

LORA = {"lora": {"r": 8, "target_modules": ["q_proj", "v_proj"], "dora": True}}
MORE: dict[str, dict[str, Any]] = {
    "autocast-recompute": small_run(training={"activation_checkpointing": "full"}),
    "adapters-recompute": small_run(training={**LORA, "activation_checkpointing": "full"}),
    "adafactor": small_run(training={"optimizer": "adafactor"}),
    "adapters-adafactor": small_run(training={**LORA, "optimizer": "adafactor"}),
    "tied": small_run(
        model={"config": {**small_run()["model"]["config"], "tie_word_embeddings": True}}
    ),
    "megatron-parts": small_run(
        "megatron_lm",
        training={"optimizer_implementation": "foreach"},
        engine={"distributed_optimizer": True},
    ),
    **{
        f"megatron-zero{stage}": small_run("megatron_deepspeed", engine={"zero_stage": stage})
        for stage in range(4)
    },
}


def _entries(run: dict[str, Any]) -> list[Entry]:
    """Every entry of an unrolled ledger, on every stage."""
    found = resolve(read(run).file)
    runs = [replace(found.run, stage=at, unrolled=True) for at in range(found.run.mesh.pp)]
    return [entry for one in runs for entry in found.engine.ledger(one).entries]


def _entry(size: int, *tensors: int) -> Entry:
    return Entry(
        name="weights", kind=PARAM, bytes=size, live={}, source=ARITHMETIC, tensors=lambda: tensors
    )


@pytest.mark.parametrize("name", [*RUNS, *MORE])
def test_tensors_sum_to_their_entry(name: str) -> None:
    """Each list of tensors has the bytes of its entry, without any scaling."""
    for entry in _entries((RUNS | MORE)[name]):
        if entry.place == GPU and entry.script is None and entry.bytes:
            assert sum(tensor_bytes(entry)) == entry.bytes


def test_an_entry_without_a_list_is_one_tensor() -> None:
    """All of its bytes are one tensor."""
    assert tensor_bytes(replace(_entry(10), tensors=None)) == [10]


def test_a_list_that_does_not_sum_is_an_error() -> None:
    """Elements in place of bytes do not pass."""
    with pytest.raises(AssertionError, match="weights: tensors of 5 B, entry of 10 B"):
        tensor_bytes(_entry(10, 2, 3))


def test_a_given_parameter_count_scales_the_tensors() -> None:
    """They keep their proportions, and sum to the entry's bytes."""
    assert tensor_bytes(_entry(10, 2, 3), scaled=True) == [4, 6]
    assert tensor_bytes(_entry(11, 2, 3), scaled=True) == [4, 7]


def test_adafactor_steps_the_adapters_alone() -> None:
    """A row and a column for each matrix of an adapter, all of DoRA's magnitude; 4 layers."""
    (states,) = (e for e in _entries(MORE["adapters-adafactor"]) if e.name == "adafactor states")
    q = [8, 256, 256, 8, 256]
    v = [8, 256, 128, 8, 128]
    assert tensor_bytes(states) == [4 * n for n in (q + v) * 4]


@pytest.mark.parametrize(
    ("output", "kept"), [(0, {3: KeptNumbers([0, 2, ~2, ~0], [0, 2, ~2, ~0], 0)}), (-1, {})]
)
def test_a_block_may_return_its_input(output: int, kept: dict[int, KeptNumbers]) -> None:
    """The next block then reads the same tensor; what has no output keeps nothing for backward."""
    writer = StreamWriter(Ledger((), ()))
    writer.flow = writer.make(8)
    block = BlockEvents(sizes=(8, 4), entry=0, exit=output, forward=(1, ~1))
    writer.forward(BlockRun(block=3, script=block, forward=True))
    assert (writer.flow, writer.kept) == (0, kept)
    assert list(writer.events) == [0, 2, ~2]
