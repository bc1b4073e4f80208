"""Counts as people write them: 128k, 8K, 1M, 4,096; and of parameters, 7B."""

from __future__ import annotations

import re

from .errors import InputError, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9}
BINARY = {"": 1, "k": 2**10, "m": 2**20, "b": 2**30, "g": 2**30}
PARAMETERS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
WRITTEN = r"\s*([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([kmbg]?)\s*"
# Keys that count tokens: their k is 1,024, as in the names of models (128k is 131,072).
TOKENS = {
    *("model.max_seq_len", "training.seq_len", "inference.max_seq_len", "inference.prompt_len"),
    *("inference.new_tokens", "inference.max_num_batched_tokens", "inference.max_total_tokens"),
    *("inference.max_input_tokens", "inference.chunked_prefill_size"),
}


def whole_count(text: str, *, tokens: bool = False) -> int | None:
    """The whole number of a text such as 128k, 1.5K or 4,096; None where it is none.

    `tokens`: k is 1,024, as sequence lengths are written; else 1,000.
    """
    match = re.fullmatch(WRITTEN, text, re.IGNORECASE)
    if match is None:
        return None
    from decimal import Decimal

    number = Decimal(re.sub(r"[_,]", "", match[1]))
    number *= (BINARY if tokens else DECIMAL)[match[2].lower()]
    return int(number) if number == int(number) else None


def as_count(path: str, value: Any) -> Any:
    """The whole number of a key's value, where it is a text that is one; else the value."""
    if not isinstance(value, str):
        return value
    number = whole_count(value, tokens=path in TOKENS)
    return value if number is None else number


def parameter_count(text: int | float | str, where: str = "model.num_parameters") -> int:
    """A parameter count from 7000000000, "7B", "7000M", "7e9" or "1.5T"; `where` names its key."""
    match = re.fullmatch(
        r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]{1,3})?)\s*([KMBGTkmbgt]?)\s*", str(text)
    )
    if match is not None and not isinstance(text, bool):
        from decimal import Decimal

        count = Decimal(match[1]) * PARAMETERS[match[2].upper()]
        if 1 <= count <= 10**15:
            return int(count)
    raise InputError(
        f"{where}={quoted(text)} must be a count from 1 to 1000T, such as 7B, 350M or 7e9"
    )
