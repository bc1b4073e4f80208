"""Stages, chunks and recomputed layers that a model's layers allow."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from ....training.engines import engine_row
from ....training.knob import RECOMPUTE
from .axes import CHUNKS, COUNT_EMBEDDING, NO_LAYERS, PARTS, PP, RECOMPUTED

Settings = Mapping[str, Any]  # keys of a run file, as section.key, with their values


def find_pipes(
    values: Mapping[str, list[int]], settings: Settings, num_layers: int, *, equal: bool = True
) -> list[tuple[int, ...]]:
    """Stages, chunks and recomputed layers. Some engines' stages share the layers equally, with
    embedding and loss where they count. Several chunks need several stages; where ends count, also
    `equal` layers, for which alone the moments of the schedule are arrays
    (training/step/chunks.py).
    """
    several = [(p, c) for p, c in product(values[PP], values[CHUNKS]) if p > 1 or c == 1]
    if not engine_row(settings["engine.type"]).equal_stages:
        return [(pp, chunks, NO_LAYERS) for pp, chunks in several]
    counted = bool(settings.get(COUNT_EMBEDDING))
    layers = num_layers + 2 * counted
    pipes: list[tuple[int, ...]] = []
    for pp, chunks in several:
        size, rest = divmod(layers, pp * chunks)
        if rest == 0 and size and pp > counted and (equal or chunks == 1 or not counted):
            pipes += [(pp, chunks, count) for count in _recomputed(size, settings, values)]
    return pipes


def _recomputed(size: int, settings: Settings, values: Mapping[str, list[int]]) -> list[int]:
    """How many layers of a chunk are recomputed, most first."""
    if settings.get(RECOMPUTE) != "full":
        return [NO_LAYERS]
    if RECOMPUTED in values:
        return sorted((n for n in values[RECOMPUTED] if n <= size), reverse=True)
    return sorted({size * part // PARTS for part in range(PARTS + 1)}, reverse=True)
