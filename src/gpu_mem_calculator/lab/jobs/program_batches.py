"""Rows of random tokens, and a tokenizer, for programs that need them."""

from __future__ import annotations

import random
from typing import Any

ROWS = 64  # of a dataset: more than any program here reads
WORDS = 2000  # of the tokenizer
SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>")
TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


def token_rows(vocab: int, length: int, count: int = ROWS) -> list[list[int]]:
    """Sequences of random token ids."""
    rng = random.Random(0)
    return [[rng.randrange(len(SPECIAL), vocab) for _ in range(length)] for _ in range(count)]


def texts(length: int, count: int = ROWS) -> list[str]:
    """Texts of `length` words; every word is one token."""
    rng = random.Random(1)
    low, high = len(SPECIAL), WORDS
    return [" ".join(f"w{rng.randrange(low, high)}" for _ in range(length)) for _ in range(count)]


def tokenizer(vocab: int) -> Any:
    """A tokenizer of whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{i}": i for i in range(len(SPECIAL), min(vocab, WORDS))}
    words |= {word: i for i, word in enumerate(SPECIAL)}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {f"{word.strip('<>')}_token": word for word in SPECIAL}
    found = PreTrainedTokenizerFast(tokenizer_object=made, **names)
    found.chat_template = TEMPLATE
    return found
