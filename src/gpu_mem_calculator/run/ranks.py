"""Of an array of runs, each rank that differs is computed once and spread over all like it.

A rank's layers depend on the micro-batch, the sequence and the ranks that share each layer. Set-ups
that differ in their pipelines and data-parallel ranks alone have the same ones.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

from msgspec import Struct
from msgspec.structs import astuple, replace

from ..ledger.mesh import Mesh
from ..ledger.num import Num
from ..ledger.remember import remembered
from .run import Run


def distinct_ranks(run: Run) -> tuple[Run, Any]:
    """A run with the sizes of each rank that differs once, and the place of every rank among them;
    the run itself and None where these sizes are no arrays.
    """
    mesh = run.mesh
    sizes: tuple[Num, ...] = (run.batch, run.seq, mesh.tp, mesh.cp, mesh.ep)
    if not any(hasattr(size, "astype") for size in sizes):
        return run, None
    (batch, seq, tp, cp, ep), places = _distinct_sizes(*sizes)
    return replace(run, batch=batch, seq=seq, mesh=Mesh(tp=tp, cp=cp, ep=ep)), places


@remembered(16)
def _distinct_sizes(*sizes: Num) -> tuple[tuple[Any, ...], Any]:
    first, places = distinct_rows(*sizes)
    return tuple(
        size.ravel()[first] if hasattr(size, "astype") else size
        for size in _as_large(sizes, places.shape)
    ), places


def _as_large(sizes: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Sizes of which the arrays have a shape."""
    import numpy as np

    return tuple(
        np.broadcast_to(size, shape) if hasattr(size, "astype") else size for size in sizes
    )


def distinct_rows(*columns: Any) -> tuple[Any, Any]:
    """Where each distinct row of some columns is first, and the number of every row among them."""
    import numpy as np

    shape = np.broadcast_shapes(*map(np.shape, columns))
    first, numbers = np.zeros(1, dtype="int64"), np.zeros(int(np.prod(shape)), dtype="int64")
    for column in columns:
        if np.ndim(column):
            whole = np.broadcast_to(column, shape).ravel()
            codes = numbers * (int(whole.max()) + 1) + whole
            _, first, numbers = np.unique(codes, return_index=True, return_inverse=True)
    return first, numbers.reshape(shape)


def single_ranks(run: Run, count: int) -> list[Run]:
    """Each of the `count` runs of an array of distinct ranks."""

    def one(size: Any, place: int) -> Num:
        return int(size[place]) if hasattr(size, "astype") else size

    mesh = run.mesh
    return [
        replace(
            run,
            batch=one(run.batch, place),
            seq=one(run.seq, place),
            mesh=Mesh(tp=one(mesh.tp, place), cp=one(mesh.cp, place), ep=one(mesh.ep, place)),
        )
        for place in range(count)
    ]


Spread = TypeVar("Spread")


def stacked(values: list[Spread]) -> Spread:
    """One value, with the numbers of several in arrays."""
    first: Any = values[0]
    whole: Any
    if isinstance(first, tuple):
        whole = tuple(stacked(list(row)) for row in zip(*cast(Any, values), strict=True))
    elif isinstance(first, Struct):
        several: list[Any] = list(values)
        rows = [dict(zip(first.__struct_fields__, astuple(one), strict=True)) for one in several]
        whole = replace(first, **{name: stacked([row[name] for row in rows]) for name in rows[0]})
    else:
        import numpy as np

        whole = np.array(values)
    return cast(Spread, whole)


def spread(value: Spread, places: Any) -> Spread:
    """A value with what each distinct rank has at all its places; `places` None: the value."""
    if places is None:
        return value
    whole: Any = value
    if isinstance(value, tuple):
        whole = tuple(spread(one, places) for one in value)
    elif isinstance(value, Struct):
        fields = zip(value.__struct_fields__, astuple(value), strict=True)
        whole = replace(value, **{name: spread(one, places) for name, one in fields})
    elif getattr(value, "ndim", 0):
        whole = whole[places]
    return cast(Spread, whole)
