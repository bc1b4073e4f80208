"""A parameter count as people write it."""

from __future__ import annotations

import re

from .errors import InputError, quoted

_SUFFIX = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}


def parameter_count(text: int | float | str, where: str = "model.num_parameters") -> int:
    """A parameter count from 7000000000, "7B", "7000M", "7e9" or "1.5T"; `where` names its key."""
    match = re.fullmatch(
        r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]{1,3})?)\s*([KMBGTkmbgt]?)\s*", str(text)
    )
    if match is not None and not isinstance(text, bool):
        from decimal import Decimal

        count = Decimal(match[1]) * _SUFFIX[match[2].upper()]
        if 1 <= count <= 10**15:
            return int(count)
    raise InputError(
        f"{where}={quoted(text)} must be a count from 1 to 1000T, such as 7B, 350M or 7e9"
    )
