"""What a life is fed with: checkpoints, rows, batches, a tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tests.lives.models import Row

WORDS = 2000


def device() -> str:
    """Where models are made: the card, or the processor where there is none."""
    import torch

    # asks the build: to ask the driver would take memory
    return "cuda" if torch.backends.cuda.is_built() else "cpu"


def save_checkpoint(row: Row, path: Path) -> None:
    """Save a model of random weights; runs in a process of its own."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = dict(row["config"]["model"]["config"])
    dtype = getattr(torch, fields.pop("dtype"))
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    torch.manual_seed(0)
    with torch.device(device()):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.save_pretrained(path, max_shard_size=row["life"]["checkpoint"]["max_shard_size"])


def load(path: Path, options: Row, quantization: Row | None) -> Any:
    """The model by `from_pretrained`, with the program's own names."""
    import torch
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    found: Row = dict(options)
    if found["dtype"] != "auto":
        found["dtype"] = getattr(torch, found["dtype"])
    if quantization:
        given = dict(quantization)
        if name := given.get("bnb_4bit_compute_dtype"):
            given["bnb_4bit_compute_dtype"] = getattr(torch, name)
        found["quantization_config"] = BitsAndBytesConfig(**given)
    return AutoModelForCausalLM.from_pretrained(path, **found)


def token_rows(lengths: list[int], vocabulary: int) -> list[Row]:
    """Random tokens; every one is a label."""
    rng, tokens = Random(0), range(4, vocabulary)
    drawn = (rng.choices(tokens, k=length) for length in lengths)
    return [
        {"input_ids": ids, "labels": list(ids), "attention_mask": [1] * len(ids)} for ids in drawn
    ]


def padded(multiple: int | None) -> Callable[[list[Row]], Row]:
    """A collator that pads to the longest row, or further to a multiple."""
    import torch

    fill = {"input_ids": 0, "labels": -100, "attention_mask": 0}

    def collate(rows: list[Row]) -> Row:
        width = max(len(row["input_ids"]) for row in rows)
        width = -(-width // (multiple or 1)) * (multiple or 1)
        return {
            key: torch.tensor([row[key] + [value] * (width - len(row[key])) for row in rows])
            for key, value in fill.items()
        }

    return collate


def tokenizer() -> Any:
    """One token for each word."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = {
        "pad_token": "<pad>",
        "eos_token": "<eos>",
        "bos_token": "<bos>",
        "unk_token": "<unk>",
    }
    numbers = {word: number for number, word in enumerate(special.values())}
    numbers |= {f"w{number}": number for number in range(4, WORDS)}
    made = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, **special)


def pairs(count: int, prompt: int, length: int) -> list[Row]:
    """Rows of DPO: a prompt, and two answers of the same length."""
    rng = Random(0)

    def words(number: int) -> str:
        return " ".join(f"w{rng.randrange(4, WORDS)}" for _ in range(number))

    answer = length - prompt
    return [
        {"prompt": words(prompt), "chosen": " " + words(answer), "rejected": " " + words(answer)}
        for _ in range(count)
    ]
