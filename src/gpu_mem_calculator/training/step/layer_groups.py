"""The layers of one pipeline stage, in groups of equal ones that run alike."""

from __future__ import annotations

from itertools import groupby

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.num import SINGLE, Num, larger, smaller
from ...models.arch.arch import Arch, Layer, merge_groups
from ...run.recompute import BY_OPERATION, EVERYTHING, FULL, NONE, RecomputeRule
from ...run.run import Run
from .instants import LayerRange

CHECKPOINTED_POLICIES = (FULL, BY_OPERATION)  # a checkpoint is around the whole layer


class LayerGroup(Struct, frozen=True, kw_only=True):
    """Consecutive equal layers of one stage.

    `recompute` is "none", "selective", "op" or "full", `rule` has its details, `reentrant` is the
    kind of its checkpoint, `window` the attention window in tokens (None: all of the sequence).
    `together`: layers under one checkpoint, which count as one. `packed`: attention is masked
    between the documents of a sequence, or at the padding of shorter ones.
    """

    layer: Layer
    count: Num
    recompute: str = NONE
    rule: RecomputeRule = EVERYTHING
    reentrant: bool = False
    window: int | None = None
    title: str = ""
    together: int = 1
    packed: bool = False

    @property
    def masked(self) -> bool:
        """Whether attention gets a mask, besides the causal one that kernels know."""
        return self.packed or self.window is not None

    @property
    def stretch(self) -> LayerRange:
        """The group's title and count, from which the instants of a step are made."""
        return LayerRange(self.title, self.count)

    @property
    def checkpointed(self) -> bool:
        """Whether a checkpoint is around the layer, which holds its arguments."""
        return self.recompute in CHECKPOINTED_POLICIES

    @property
    def offloaded(self) -> bool:
        """Whether a checkpoint keeps the layer's input in host RAM."""
        return self.recompute == FULL and self.rule.offload


LayerGroups = tuple[LayerGroup, ...]


def overlap(first: Num, count: Num, low: Num, high: Num) -> Num:
    """How many of `count` items from `first` on are in [low, high)."""
    return larger(smaller(first + count, high) - larger(first, low), 0)


def layer_policy(run: Run, index: int) -> str:
    """What recompute does with the layer of this index: none, selective, op or full."""
    if run.recompute != FULL:
        return run.recompute
    chosen = index < len(run.arch.layers) * run.recompute_quarters // 4
    return FULL if chosen and index % run.rule.every == run.rule.first else NONE


def layer_groups(run: Run, low: Num, high: Num) -> LayerGroups:
    """The layers [low, high) of a model, in groups.

    A group ends where the layer's shape, its attention window or its recompute changes; in an
    unrolled run it is one layer. A group without a layer in [low, high) has a count of 0.
    """
    groups: list[LayerGroup] = []
    for layer, window, first, count in _runs(run.arch, run.seq):
        for policy, start, size in _policy_runs(run, first, count):
            groups.append(
                LayerGroup(
                    layer=layer,
                    count=overlap(start, size, low, high),
                    recompute=policy,
                    rule=run.rule,
                    reentrant=run.reentrant,
                    window=window,
                    title=f"{layer.kind} layers",
                    packed=run.documents > 1 or run.padded,
                )
            )
    if run.unrolled:
        singles = tuple(replace(g, count=1) for g in groups for _ in range(int(g.count)))
        return singles or (replace(groups[0], count=0),)
    return tuple(groups)


def _policy_runs(run: Run, first: int, count: int) -> list[tuple[str, int, int]]:
    """Consecutive layers with one policy: (policy, first, count)."""
    found: list[tuple[str, int, int]] = []
    for policy, indices in groupby(range(first, first + count), lambda i: layer_policy(run, i)):
        every = list(indices)
        found.append((policy, every[0], len(every)))
    return found


def _runs(arch: Arch, seq: Num) -> tuple[tuple[Layer, int | None, int, int], ...]:
    """Consecutive equal layers with equal windows: (layer, window, first, count).

    A window that is longer than the sequence counts as none.
    """
    if not arch.windows:
        return arch.window_runs
    return merge_groups(
        (layer, window if window is not None and slides(seq, window) else None, first, count)
        for layer, window, first, count in arch.window_runs
    )


def equal_layers(run: Run) -> bool:
    """Whether all layers are equal, their windows too: then one group has all of them."""
    return len(_runs(run.arch, run.seq)) == 1


def slides(keys: Num, window: int) -> bool:
    """Whether a sliding window needs an explicit mask for this number of keys.

    transformers 5.17.0 masking_utils.py:263 makes one from `kv_length >= sliding_window` on. This
    selects a kernel, so all elements of an array must agree.
    """
    return same_for_all(keys >= window)


def same_for_all(condition: Num) -> bool:
    """The condition as one bool, for one run or for an array of runs.

    Raises a ValueError where the runs of an array differ.
    """
    if isinstance(condition, SINGLE):
        return bool(condition)
    answers = set(map(bool, condition.flat))
    if len(answers) > 1:
        raise ValueError("sequences on both sides of a window need two ledgers")
    return answers.pop()
