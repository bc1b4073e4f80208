"""training.lengths: lists, distributions and files become batches; what is wrong is a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.resolve.resolved_run import ResolvedRun
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.lengths.batches import BatchShape

SEQUENTIAL = {"strategy": "sequential"}


def _run(gpus: int = 1, **training: Any) -> ResolvedRun:
    hardware = {"gpu": "h100-80gb-sxm", "num_gpus": gpus}
    file = {"model": {"name": "qwen2.5-0.5b"}, "training": training, "hardware": hardware}
    return resolve(read(file).file)


def _shapes(**training: Any) -> list[BatchShape]:
    drawn = _run(**{"batch_size": 2, "sampling": SEQUENTIAL, **training}).lengths
    assert drawn is not None
    return [batch for step in drawn.main for batch in step]


def test_a_batch_is_as_long_as_its_longest_sequence() -> None:
    """A batch of equal lengths needs no mask; the last one has fewer sequences."""
    assert _shapes(lengths=[5, 9, 7, 7, 3]) == [
        BatchShape(2, 9, padded=True),
        BatchShape(2, 7),
        BatchShape(1, 3),
    ]


def test_padding_goes_to_a_multiple_or_to_the_longest_that_is_allowed() -> None:
    """Longer examples than seq_len are cut."""
    multiple = _shapes(lengths=[5, 9, 16, 16], pad_to_multiple_of=8)
    assert multiple == [BatchShape(2, 16, padded=True), BatchShape(2, 16)]
    longest = _shapes(lengths=[5, 9, 20, 30], padding="max_length", seq_len=16)
    assert longest == [BatchShape(2, 16, padded=True), BatchShape(2, 16)]


def test_without_padding_a_batch_is_one_sequence() -> None:
    """Attention is masked between its documents."""
    assert _shapes(lengths=[5, 9, 7, 7], padding_free=True) == [
        BatchShape(1, 14),
        BatchShape(1, 14),
    ]
    assert _run(batch_size=2, lengths=[5, 9], padding_free=True).run.documents == 2


def test_packing_fills_rows() -> None:
    """Best fit decreasing, or cut from one text."""
    packed = _shapes(lengths=[6, 5, 4, 3, 20], packing="bfd", seq_len=10, batch_size=1)
    assert [shape.tokens for shape in packed] == [10, 10, 8]
    wrapped = _shapes(lengths=[6, 5, 4, 3, 20], packing="wrapped", seq_len=10, batch_size=1)
    assert [shape.tokens for shape in wrapped] == [10, 10, 10, 8]
    split = _shapes(lengths=[6, 5, 4, 3, 20], packing="bfd_split", seq_len=10, batch_size=1)
    assert [shape.tokens for shape in split] == [10, 10, 10, 8]


def test_the_run_has_its_longest_batch() -> None:
    """Also where ranks take turns: the rank that has it is estimated."""
    run = _run(gpus=2, batch_size=1, lengths=[5, 6, 7, 900], sampling=SEQUENTIAL)
    assert (run.run.batch, run.run.seq, run.run.padded) == (1, 900, False)
    assert run.lengths is not None
    assert [step[0].tokens for step in run.lengths.main] == [6, 900]
    assert run.lengths.longest_step == 2


def test_an_order_that_nobody_says_is_drawn_twenty_times() -> None:
    """A distribution always is."""
    drawn = _run(lengths=[5, 6, 7], batch_size=2).lengths
    assert drawn is not None
    assert (len(drawn.orders), drawn.known, drawn.epoch) == (20, False, 2)
    drawn = _run(lengths={"uniform": [64, 128]}, sampling={"data_seed": 42}).lengths
    assert drawn is not None
    assert (len(drawn.orders), drawn.known, drawn.epoch, drawn.steps) == (20, False, None, 100)


def test_later_steps_are_replayed_where_they_are_larger() -> None:
    """Of a run with more steps than are replayed."""
    lengths = [*range(1, 301)]
    drawn = _run(lengths=lengths, sampling=SEQUENTIAL).lengths
    assert drawn is not None
    assert (drawn.replayed, len(drawn.main), drawn.longest_step) == (200, 300, 300)
    drawn = _run(lengths=lengths[::-1], sampling=SEQUENTIAL).lengths
    assert drawn is not None
    assert (drawn.replayed, len(drawn.main), drawn.longest_step) == (200, 200, 1)


@pytest.mark.parametrize(
    "given",
    [{"uniform": [64, 64]}, {"histogram": [[64, 64, 2], [9, 9, 0]]}, {"p50": 64, "p99": 64}],
)
def test_distributions(given: dict[str, Any]) -> None:
    """Each by the name of what it says."""
    drawn = _run(lengths={**given, "examples": 8}, batch_size=4).lengths
    assert drawn is not None
    assert {batch for order in drawn.orders for step in order for batch in step} == {
        BatchShape(4, 64)
    }
    assert drawn.epoch == 2


FILES = {
    "numbers.json": [5, 9],
    "rows.json": [{"length": 5}, {"length": 9}],
    "columns.json": {"length": [5, 9], "text": ["a", "b"]},
    "tokens.jsonl": '{"input_ids": [1, 2, 3, 4, 5]}\n{"input_ids": [1, 2, 3, 4, 5, 6, 7, 8, 9]}\n',
    "numbers.txt": "5\n9\n",
    "plain.csv": "5\n9\n",
    "named.csv": "id,num_tokens\na,5\nb,9\n",
}


@pytest.mark.parametrize("name", FILES)
def test_lengths_are_read_from_files(name: str, tmp_path: Path) -> None:
    """Numbers, or a column of lengths or of tokens."""
    text = FILES[name]
    path = tmp_path / name
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    assert _shapes(lengths=str(path)) == [BatchShape(2, 9, padded=True)]
    assert _shapes(lengths=str(tmp_path)) == [BatchShape(2, 9, padded=True)]


def test_text_has_as_many_tokens_as_the_user_says(tmp_path: Path) -> None:
    """Without a tokenizer only the user knows."""
    path = tmp_path / "text.jsonl"
    path.write_text('{"text": "abcdefghij"}\n{"text": "abcd"}\n')
    where = {"file": str(path), "column": "text"}
    found = _shapes(lengths={**where, "characters_per_token": 2})
    assert found == [BatchShape(2, 5, padded=True)]
    with pytest.raises(InputError, match='example 1 is text; add "characters_per_token"'):
        _run(lengths=where)


WRONG = {
    "it is empty": {"lengths": []},
    "is none": {"lengths": [5, 0]},
    "must be a list of lengths": {"lengths": {"normal": [1, 2]}},
    "must be two lengths": {"lengths": {"uniform": 5}},
    "9 is more than 5; turn them round": {"lengths": {"p50": 9, "p99": 5}},
    "must be low, high and weight": {"lengths": {"histogram": [[1, 2]]}},
    "all weights are 0": {"lengths": {"histogram": [[1, 2, 0]]}},
    "no such file": {"lengths": "nowhere.json"},
    "is none of .json": {"lengths": "nowhere.bin"},
    "needs training.lengths, the tokens of each example": {"padding": "max_length"},
    "'max_length' needs training.seq_len": {"lengths": [5], "padding": "max_length"},
    "needs training.seq_len, a row's tokens": {"lengths": [5], "packing": "bfd"},
    "needs the lengths of all examples": {
        "lengths": {"uniform": [5, 9]},
        "packing": "bfd",
        "seq_len": 64,
    },
    "pads nothing; leave it out": {"lengths": [5], "padding": "longest", "padding_free": True},
    "no whole batch of 2 on 1 ranks": {
        "lengths": [5],
        "batch_size": 2,
        "sampling": {"drop_last": True},
    },
}


@pytest.mark.parametrize("words", WRONG)
def test_what_is_wrong_is_a_sentence(words: str) -> None:
    """It names the key and the nearest fix."""
    with pytest.raises(InputError, match=words):
        _run(**WRONG[words])
