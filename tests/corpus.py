"""Long corpora: `make test` runs a sample that is evenly spread, `make proof` runs all of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

whole = True  # whether all cases are made, and not only those that `make test` runs


def sampled(cases: Iterable[Any] | Mapping[str, Any], keep: int) -> list[Any]:
    """Parameters for all cases; `keep` of them, evenly spread, run without `-m proof`, too.

    A mapping's cases are its values, named by its keys.
    """
    rows: list[tuple[Any, str | None]] = (
        [(value, str(name)) for name, value in cases.items()]
        if isinstance(cases, Mapping)
        else [(value, None) for value in cases]
    )
    kept = {round(index * (len(rows) - 1) / max(1, keep - 1)) for index in range(keep)}
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            id=name,
            marks=() if index in kept else pytest.mark.proof,
        )
        for index, (value, name) in enumerate(rows)
        if whole or index in kept
    ]
