"""The layers of a forward pass at which FSDP has instants, in both versions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ....ledger.ledger import FIRST, LAST
from ...step.layer_groups import LayerGroup, LayerGroups


def layer_count(stack: Iterable[LayerGroup]) -> int:
    """Layers of these groups."""
    return sum(int(group.count) for group in stack)


def waiting_layers(
    stack: LayerGroups, *, every: bool
) -> Iterator[tuple[int, str, str, str, dict[str, Any]]]:
    """The layers whose forward has instants: number, word in names, title, which end of the model
    it is, and the fields of an instant before it runs.
    """
    last = layer_count(stack) - 1
    for layer, index in _forward_layers(stack, every=every):
        low = layer_count(stack[:index])
        saved = tuple(
            int(group.count) if j < index else layer - low if j == index else 0
            for j, group in enumerate(stack)
        )
        word = "first" if layer == 0 else "last" if layer == last else f"{layer}"
        title = f"the {word} layer" if word in ("first", "last") else f"layer {layer}"
        end = {"first": FIRST, "last": LAST}.get(word, "")
        fields = {"saved": saved, "stretch": index, "inside_forward": layer > 0}
        yield layer, word, title, end, fields


def _forward_layers(stack: LayerGroups, *, every: bool) -> list[tuple[int, int]]:
    """Layers whose forward has instants, each with the index of its group.

    Saved activations only grow in forward, so of equal layers that follow equal layers the last
    one is the highest.
    """
    chosen: dict[object, tuple[int, int]] = {}
    before: object = None
    layer = 0
    for index, group in enumerate(stack):
        kind = (id(group.layer), group.window, group.recompute)
        for _ in range(int(group.count)):
            chosen[layer if every else (before, kind)] = (layer, index)
            before, layer = kind, layer + 1
    return sorted(chosen.values())
