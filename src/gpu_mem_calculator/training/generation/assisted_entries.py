"""Entries of two models that generate together: caches and single tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ...ledger.ledger import ACT, CACHE, Entry
from ...ledger.num import EMPTY, Bytes, Num, nothing
from ...ledger.source import Source
from .decode_steps import LayerKind
from .entries import CACHE_CODE, GenerationCase, cached_bytes
from .instants import STACK, GenerationInstant


def running_caches(case: GenerationCase) -> Iterator[Entry]:
    """Caches of the model that runs, of the layers that do not: before and after their pass."""
    for kind, each in zip(case.found, case.passes, strict=True):
        for name, step in each.items():
            in_pass = [i for i in case.table if i.step == name and i.work != STACK]
            joining = [i for i in case.table if i.step == name and i.work == STACK]
            rows = [(step.left, {i.name: i.layers_before(kind) for i in in_pass})]
            rows.append((step.left, {i.name: len(kind.places) for i in joining}))
            if step.stored is not None:
                rows.append((step.stored, {i.name: i.layers_after(kind) for i in in_pass}))
            for tokens, live in rows:
                yield cache_entry(case, kind, tokens, live)


def cache_entry(
    case: GenerationCase, kind: LayerKind, tokens: Num, live: Mapping[str, Num]
) -> Entry:
    """The cache of one layer of a kind, with `tokens` of each sequence."""
    parts = cached_bytes(case, kind, tokens)
    total = EMPTY if nothing(tokens) else sum((size for _, size in parts), EMPTY)
    name = f"{kind.title}: cache"
    return Entry(name=name, kind=CACHE, bytes=total, live=live, source=CACHE_CODE)


def tensor_entry(
    name: str, size: Bytes, instants: Iterable[GenerationInstant], source: Source
) -> Entry:
    """A tensor of `size` bytes that is alive at `instants`."""
    live: dict[str, Num] = {i.name: 1 for i in instants}
    return Entry(name=name, kind=ACT, bytes=size, live=live, source=source)
