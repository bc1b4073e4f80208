"""The text of the worked example: where it comes from, its characters, its blocks."""

from __future__ import annotations

import hashlib
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dataset import Characters, TextDataset, load_text, split  # noqa: E402
from gptlite import SIZES, VOCABULARY, GPTlite  # noqa: E402
from text_task import SAMPLE, get_model_and_dataset, show_sample  # noqa: E402

from . import GPTLITE  # noqa: E402

PARAMETERS = 86_701_056  # of the model with the vocabulary of the text that ships
TEXT = "the quick brown fox jumps over the lazy dog\n" * 30


def options(**given: Any) -> Namespace:
    """What train.py hands to a task, small where nothing is said."""
    small = {"n_layer": 1, "n_embd": 16, "n_head": 2, "block_size": 32, "dropout": 0.0}
    return Namespace(**{**small, "text": None, "seed": 0, "validation": False, **given})


# --- the text that ships ---


def test_the_text_that_ships_is_the_one_its_readme_describes() -> None:
    """Characters, vocabulary and checksum are those that are written beside it."""
    text = load_text()
    readme = (GPTLITE / "text" / "README.md").read_text(encoding="utf-8")
    assert f"{len(text):,}" in readme
    assert hashlib.sha256(text.encode()).hexdigest() in readme
    assert Characters(text).size == VOCABULARY == 65


def test_its_vocabulary_gives_the_published_parameter_count() -> None:
    """86,701,056, at the size of GPT-3 Small."""
    with torch.device("meta"):
        model = GPTlite(Characters(load_text()).size, **SIZES)
    assert sum(one.numel() for one in model.parameters()) == PARAMETERS


# --- characters and parts ---


def test_characters_are_sorted_and_come_back() -> None:
    """What is encoded is decoded; the order does not hang on the text's."""
    characters = Characters("cab\n")
    assert characters.all == ["\n", "a", "b", "c"]
    assert characters.encode("abc").tolist() == [1, 2, 3]
    assert characters.decode(characters.encode("bacca")) == "bacca"


def test_a_foreign_character_is_refused() -> None:
    """Not a number that means something else."""
    with pytest.raises(ValueError, match="'z' is none of the 2 characters"):
        Characters("ab").encode("abz")


def test_the_parts_are_the_text() -> None:
    """Nine tenths and one, nothing lost and nothing in both."""
    train, validation = split(TEXT)
    assert train + validation == TEXT
    assert len(validation) == len(TEXT) // 10


# --- blocks ---


def test_a_target_is_its_block_one_character_on() -> None:
    """And both are int64 pieces of the text."""
    characters = Characters(TEXT)
    blocks = TextDataset(TEXT, characters, 8)
    x, y = blocks[5]
    assert x.dtype == y.dtype == torch.int64
    assert x[1:].equal(y[:-1])
    assert characters.decode(x) + characters.decode(y[-1:]) in TEXT


@pytest.mark.parametrize("length", [9, 10, 14, 57, 300])
def test_every_place_comes_once(length: int) -> None:
    """A text of all different characters shows where each block begins."""
    text = "".join(chr(256 + number) for number in range(length))
    blocks = TextDataset(text, Characters(text), 8, seed=3)
    assert sorted(int(x[0]) for x, _ in blocks) == list(range(length - 8)) == [*range(len(blocks))]


def test_items_in_a_row_are_spread_over_the_text() -> None:
    """Sixteen of them reach every quarter, so a sampler need not shuffle."""
    text = "".join(chr(256 + number) for number in range(1000))
    blocks = TextDataset(text, Characters(text), 8)
    quarters = {int(blocks[index][0][0]) * 4 // len(blocks) for index in range(16)}
    assert quarters == {0, 1, 2, 3}


def test_an_item_is_a_matter_of_its_index_and_the_seed() -> None:
    """Whatever was drawn or asked for before, as on another rank or in a resumed run."""
    characters = Characters(load_text())
    one, other, third = (TextDataset(load_text(), characters, 64, seed) for seed in (7, 7, 8))
    for index in range(5):
        assert one[index][0].equal(one[index][0])
    torch.manual_seed(1)
    torch.rand(3)
    assert other[100][0].equal(one[100][0])
    assert other[4][1].equal(one[4][1])
    assert not third[4][0].equal(one[4][0])


def test_ranks_share_out_an_epoch() -> None:
    """With torch's own sampler: all items, each on one rank, the same again the next time."""
    from torch.utils.data import DistributedSampler

    blocks = TextDataset(TEXT[:136], Characters(TEXT), 8)
    shares = [list(DistributedSampler(blocks, 4, rank, shuffle=True)) for rank in range(4)]
    assert sorted(index for share in shares for index in share) == list(range(len(blocks)))
    assert shares[1] == list(DistributedSampler(blocks, 4, 1, shuffle=True))


def test_an_item_beyond_the_end_is_an_error() -> None:
    """So that a loop over the dataset ends."""
    blocks = TextDataset(TEXT, Characters(TEXT), 8)
    with pytest.raises(IndexError):
        blocks[len(blocks)]


@pytest.mark.parametrize(
    ("text", "block_size", "says"),
    [
        (TEXT[:32], 32, "block_size=32 needs 33 characters or more, the text has 32"),
        ("ab", 2048, "give a longer text or a smaller block_size"),
        (TEXT, 0, "block_size=0 is no length"),
    ],
)
def test_a_text_shorter_than_a_block_is_refused(text: str, block_size: int, says: str) -> None:
    """One sentence with both numbers."""
    with pytest.raises(ValueError, match=says):
        TextDataset(text, Characters(TEXT), block_size)


# --- paths ---


def test_a_path_is_read(tmp_path: Path) -> None:
    """As UTF-8, with or without a mark in front, and with any line ends."""
    path = tmp_path / "own.txt"
    path.write_bytes(b"\xef\xbb\xbf" + "für\r\nalle\n".encode())
    assert load_text(str(path)) == "für\nalle\n"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("nowhere.txt", "nowhere.txt cannot be read: No such file or directory"),
        (".", r"\. cannot be read: Is a directory"),
        ("empty.txt", "empty.txt is empty"),
        ("latin.txt", r"latin.txt is not UTF-8 text \(byte 1\): convert it"),
        ("ftp://host/text", "only http:// and https:// addresses and paths"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(
    source: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ValueError, whatever it was underneath."""
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").touch()
    Path("latin.txt").write_bytes(b"f\xfcr")
    with pytest.raises(ValueError, match=says) as caught:
        load_text(source)
    assert "\n" not in str(caught.value)


# --- the task ---


def test_the_task_makes_a_model_for_its_text(tmp_path: Path) -> None:
    """The vocabulary is the text's, the loss that of a model that knows nothing yet."""
    path = tmp_path / "own.txt"
    path.write_text(TEXT, encoding="utf-8")
    model, blocks = get_model_and_dataset(options(text=str(path)))
    assert model.lm_head.out_features == blocks.characters.size == len(set(TEXT))
    assert len(blocks) == len(TEXT) - 32
    assert blocks.validation is None
    x, y = (one[None] for one in blocks[0])
    assert model(x, y).item() == pytest.approx(torch.tensor(len(set(TEXT))).log().item(), rel=0.2)
    assert model(x).shape == (1, 32, len(set(TEXT)))


def test_a_size_that_is_not_given_is_that_of_gpt3_small() -> None:
    """None is the way to say so."""
    _, blocks = get_model_and_dataset(options(block_size=None))
    assert blocks.block_size == SIZES["block_size"]


def test_the_held_out_part_has_the_same_vocabulary() -> None:
    """And its own blocks."""
    _, blocks = get_model_and_dataset(options(validation=True))
    assert len(blocks) + len(blocks.validation) + 2 * 32 == len(load_text())
    assert blocks.validation.characters.size == 65


def test_a_sample_is_text_and_leaves_the_mode_alone() -> None:
    """Generated without dropout, from a model that goes on training."""
    model, blocks = get_model_and_dataset(options())
    sample = show_sample(model, blocks, "cpu")
    assert len(sample) == SAMPLE
    assert set(sample) <= set(blocks.characters.all)
    assert model.training
