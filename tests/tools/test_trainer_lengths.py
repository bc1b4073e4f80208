"""Lengths of examples beside a program: the tool's own order, padding and packing."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.resolve.resolved_run import ResolvedRun
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.lengths.batches import BatchShape

LENGTHS = [40, 9, 70, 8, 200, 12, 33, 5]


def _resolved(
    tool: str, data: dict[str, Any] | None = None, run: dict[str, Any] | None = None, **args: Any
) -> ResolvedRun:
    program = {
        "tool": tool,
        "args": {"per_device_train_batch_size": 2, **args},
        "data": {"lengths": LENGTHS} if data is None else data,
    }
    file = {"model": {"name": "qwen2.5-0.5b"}, "hardware": {"gpu": "h100"}, "program": program}
    return resolve(read({**file, **(run or {})}).file)


def test_the_order_is_that_of_trainer() -> None:
    """data_seed wins over seed; grouped examples follow seed alone."""
    trainer = "transformers.Trainer"
    drawn = _resolved(trainer, max_steps=3).lengths
    assert drawn is not None
    assert (drawn.known, drawn.batching.number, drawn.steps) == (True, 42, 3)
    drawn = _resolved(trainer, data_seed=7).lengths
    assert drawn is not None
    assert (drawn.batching.number, drawn.steps, drawn.epoch) == (7, 12, 4)
    drawn = _resolved(trainer, data_seed=7, train_sampling_strategy="group_by_length").lengths
    assert drawn is not None
    assert (drawn.batching.strategy, drawn.batching.number) == ("group_by_length", 42)
    drawn = _resolved(trainer, train_sampling_strategy="sequential").lengths
    assert drawn is not None
    assert [step[0].tokens for step in drawn.main[:4]] == [40, 70, 200, 33]


def test_older_releases_group_by_length() -> None:
    """Its name before transformers 5.2."""
    program = {
        "tool": "transformers.Trainer",
        "version": "4.57.1",
        "args": {"group_by_length": True},
        "data": {"lengths": LENGTHS},
    }
    drawn = resolve(read({"model": {"name": "gpt2"}, "program": program}).file).lengths
    assert drawn is not None
    assert drawn.batching.strategy == "group_by_length"


def test_batches_that_are_balanced_are_a_limit() -> None:
    """They are drawn at random instead, in an order that is not known."""
    found = _resolved("transformers.Trainer", train_sampling_strategy="batch_rebalance")
    assert found.lengths is not None
    assert not found.lengths.known
    assert [limit.key for limit in found.limits] == ["train_sampling_strategy='batch_rebalance'"]


def test_lengths_of_the_run_file_are_those_of_its_program() -> None:
    """So `--set training.lengths=FILE` beside a command has the tool's order."""
    run = {"training": {"lengths": LENGTHS}}
    one = _resolved("transformers.Trainer", {}, run).lengths
    two = _resolved("transformers.Trainer").lengths
    assert one is not None
    assert two is not None
    assert one.orders == two.orders


def test_sft_truncates_pads_and_packs() -> None:
    """max_length bounds an example; packed rows have no padding."""
    sft = "trl.SFTTrainer"
    found = _resolved(sft, max_length=64, pad_to_multiple_of=16)
    assert (found.run.batch, found.run.seq, found.run.padded) == (2, 64, True)
    found = _resolved(sft, max_length=64, packing=True)
    assert found.lengths is not None
    assert {batch.sequences for step in found.lengths.main for batch in step} == {1}
    assert found.run.documents == 2
    assert found.lengths.longest.tokens <= 128
    found = _resolved(sft, max_length=None, padding_free=True)
    assert found.lengths is not None
    assert found.lengths.longest.sequences == 1
    with pytest.raises(InputError, match="padding_free=true: TRL refuses it without packing"):
        _resolved(sft, padding_free=True)


def test_a_batch_of_sft_has_the_labels_of_its_tokens() -> None:
    """Its loss takes tokens with a label alone; padding has none."""
    found = _resolved("trl.SFTTrainer", train_sampling_strategy="sequential")
    assert found.lengths is not None
    assert found.lengths.main[0] == (BatchShape(2, 40, padded=True, labelled=24),)


def test_pairs_have_twice_the_sequences() -> None:
    """Which are pairs is not modelled, so the order is not known."""
    found = _resolved("trl.DPOTrainer", max_length=64)
    assert found.lengths is not None
    assert not found.lengths.known
    assert found.lengths.longest.sequences == 4
    with pytest.raises(InputError, match="completions have the length that they are generated"):
        _resolved("trl.GRPOTrainer", {"lengths": LENGTHS, "prompt": 16})


@pytest.mark.parametrize("tool", ["llamafactory", "axolotl", "swift"])
def test_tools_that_group_examples(tool: str) -> None:
    """Their files say it in the words of older releases."""
    texts = {
        "llamafactory": "model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: sft\ndo_train: true\n"
        "finetuning_type: full\ncutoff_len: 64\ntemplate: qwen\n",
        "axolotl": "base_model: Qwen/Qwen2.5-0.5B\nsequence_len: 64\nmicro_batch_size: 2\n"
        "datasets: [{path: x, type: alpaca}]\noptimizer: adamw_torch\n",
        "swift": "swift sft --model Qwen/Qwen2.5-0.5B --dataset x --train_type full"
        " --max_length 64 --group_by_length true",
    }
    text = texts[tool] if tool == "swift" else f"{texts[tool]}group_by_length: true\n"
    asked = read(text)
    run = {**asked.run, "training": {"lengths": LENGTHS}} if isinstance(asked.run, dict) else {}
    drawn = resolve(read(run).file).lengths
    assert drawn is not None
    assert (drawn.batching.strategy, drawn.known) == ("group_by_length", True)
    assert max(batch.tokens for step in drawn.main for batch in step) == 64
