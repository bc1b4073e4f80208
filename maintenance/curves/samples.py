"""A few rows of the wheel, against which a test compares the lookups."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from .attention import HEAD_DIMS, attention_path, attention_rows
from .matmul import TRAINING, is_of_training, matmul_rows
from .wheel import CARDS, LICENCE, NAME, VERSION, table

PRODUCTS, KERNELS = 251, 31  # of the rows of training, sorted, every so many


def samples(wheel: Path) -> dict[str, Any]:
    """Rows of each card: of bf16 products m, n, k and microseconds; of attention head size, keys,
    attention heads times sequences, and microseconds.
    """
    products, kernels = {}, {}
    for card in CARDS:
        rows = matmul_rows(wheel, card)["bf16"]
        large = sorted(filter(is_of_training, rows))
        products[card] = [(*p, round(median(rows[p]), 3)) for p in large[::PRODUCTS]]
        found = attention_rows(table(wheel, attention_path(card)))
        long = sorted(key for key in found if key[0] in HEAD_DIMS and key[1] >= TRAINING[0])
        kernels[card] = [(*key, round(1e6 * median(found[key]), 3)) for key in long[::KERNELS]]
    return {
        "source": f"{NAME} {VERSION}",
        "licence": LICENCE,
        "matmul": products,
        "attention": kernels,
    }
