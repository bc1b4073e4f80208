"""The layers of one pipeline stage, as stretches that are run and kept alike."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from ..ledger.num import Num, larger, smaller
from ..model.arch import Arch, Layer, merged
from ..run.run import Run
from .instants import LayerRange


class LayerGroup(Struct, frozen=True, kw_only=True):
    """Equal layers of one stage: how many, how they are recomputed, their attention window."""

    layer: Layer
    count: Num
    recompute: str = "none"
    reentrant: bool = False
    window: int | None = None
    title: str = ""

    @property
    def stretch(self) -> LayerRange:
        """As the timeline sees it."""
        return LayerRange(self.title, self.count)


def overlap(first: Num, count: Num, low: Num, high: Num) -> Num:
    """How many of `count` items from `first` on lie in [low, high)."""
    return larger(smaller(first + count, high) - larger(first, low), 0)


def blocks(run: Run, low: Num, high: Num) -> tuple[LayerGroup, ...]:
    """The layers [low, high) of a model, in stretches.

    A stretch ends where the layer's shape, its attention window or its recompute changes; in an
    unrolled run it is one layer.
    """
    arch = run.arch
    limit = len(arch.layers) * run.recompute_quarters // 4
    if run.recompute != "full":
        limit = 0
    found: list[LayerGroup] = []
    for layer, window, first, count in _runs(arch, run.seq):
        title = f"{layer.kind} layers"
        again = smaller(larger(limit - first, 0), count)
        pieces = ((first, again, "full"), (first + again, count - again, run.recompute))
        for start, size, policy in pieces:
            policy = "none" if policy == "full" and start >= limit else policy
            if size > 0:
                here = overlap(start, size, low, high)
                found.append(
                    LayerGroup(layer=layer, count=here, recompute=policy, reentrant=run.reentrant,
                          window=window, title=title)
                )  # fmt: skip
    if run.unrolled:
        alone = tuple(replace(b, count=1) for b in found for _ in range(b.count))
        return alone or (replace(found[0], count=0),)
    return tuple(found)


def _runs(arch: Arch, seq: Num) -> tuple[tuple[Layer, int | None, int, int], ...]:
    """Stretches of equal layers with equal windows: (layer, window, first, count).

    A window that is longer than the sequence is no window.
    """
    if not arch.windows:
        return arch.window_runs
    return merged(
        (layer, window if window is not None and slides(seq, window) else None, first, count)
        for layer, window, first, count in arch.window_runs
    )


def slides(keys: Num, window: int) -> bool:
    """Whether a window makes a mask: a choice of kernel, so one answer for all.

    transformers 5.17.0 masking_utils.py:263 makes one from `kv_length >= sliding_window` on.
    """
    return same_for_all(keys >= window)


def same_for_all(condition: Num) -> bool:
    """One answer, whether it is asked for one run or for many at once."""
    if isinstance(condition, bool):
        return condition
    answers = set(condition.ravel().tolist())
    if len(answers) > 1:
        raise ValueError("sequences on both sides of a window need two ledgers")
    return bool(answers.pop())
