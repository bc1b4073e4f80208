"""Values to draw for a key of a run file, from its type and the sets that the package lists."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any

from msgspec import Meta, Struct

from gpu_mem_calculator.runfile.keys.allowed_values import choices
from gpu_mem_calculator.runfile.read import key_types, parts

FEW = (1, 2, 2, 3, 4, 4, 7, 8)
# Whole numbers by a part of the key's name; the first that fits.
WHOLE: dict[str, tuple[int, ...]] = {
    "bytes": (10**8 + 1, 10**9, 5 * 10**9, 2 * 10**10),
    "parallel_size": (1, 2, 2, 2, 4, 4, 8),
    "pipeline_size": (2, 3),
    "lora_rank": (8, 16, 64, 256),
    "bucket": (1000, 100_001, 10**6, 30_000_000),
    "stage3": (0, 1000, 100_001, 10**6, 30_000_000),
    "sub_group": (1000, 100_001, 10**6, 10**9),
    "divisible": (1, 64, 100, 128),
    "block_size": (16, 32, 64, 128),
    "page_size": (1, 16, 32, 64),
    "layers": (0, 1, 2, 5, 17, 99),
    "max_seq_len": (100, 1000, 2048, 4096, 5000, 16_384, 40_000),
    "top_k": (0, 5, 50),
    "tokens": (17, 100, 513, 1000, 2048, 4096, 5000, 16_384, 40_000),
    "len": (17, 100, 513, 1000, 2048, 4096),
    "seqs": (1, 7, 17, 64, 100, 256, 513, 1024),
    "batch": (1, 7, 32, 64, 513, 1000, 2048),
    "prefill_size": (17, 512, 1000, 2048, 4096, 8192, 40_000),
    "graph": (0, 1, 7, 8, 17, 64, 100, 256, 513, 1000),
}
FEW_KEYS = ("batch_size", "num_speculative_tokens", "n_parallel")
SHARES = (0.1, 0.3, 0.5, 0.7, 0.85, 0.97, 1.0)
RATIOS = (0.0, 0.5, 1.0, 1.5, 2.0, 4.0, 10.0)
OBJECTS = ({"image": 1}, {"image": 3})
LISTS: tuple[list[Any], ...] = ([1], [512], [1, 3], [1024, 4096], [0], [1, 8, 64])


@cache
def values(section: str, kinds: type[Struct], key: str, engine: str) -> tuple[Any, ...]:
    """Values of a key: the sets that the package lists for an engine, else numbers of its type."""
    path, kind = f"{section}.{key}", key_types(kinds)[key]
    found: list[Any] = [
        one.value for one in choices(path, kind, (engine,)) if engine in (one.engines or (engine,))
    ]
    if not found:
        for part in parts(kind):
            base = getattr(part, "__origin__", part)
            found += _typed(key, base, getattr(part, "__metadata__", ()))
    return tuple(found)


def _typed(key: str, base: Any, metas: tuple[Any, ...]) -> tuple[Any, ...]:
    if base is bool:
        return (True, False)
    if base is int:
        return FEW if key in FEW_KEYS else next((WHOLE[name] for name in WHOLE if name in key), FEW)
    if base is float:
        most = next((meta.le for meta in metas if isinstance(meta, Meta)), None)
        return SHARES if most == 1 else RATIOS
    if getattr(base, "__origin__", base) is dict:
        return OBJECTS
    return LISTS if getattr(base, "__origin__", base) is list else ()


def setting(path: str, value: Any) -> str:
    """`section.key=value` without a space in it."""
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return f"{path}={text}"


def drawn_setting(rng: Random, path: str, among: Sequence[Any]) -> str:
    """A setting with one of the values."""
    return setting(path, rng.choice(among))


def joined(settings: list[str], more: list[str]) -> list[str]:
    """Settings and more of them; of two with the same key the first."""
    first: dict[str, str] = {}
    for one in (*settings, *more):
        first.setdefault(one.partition("=")[0], one)
    return list(first.values())
