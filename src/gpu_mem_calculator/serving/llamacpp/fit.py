"""--fit: llama-server lowers what nobody gave until it fits: the context, then the layers on GPUs,
experts first.

llama.cpp b10586 common/fit.cpp common_params_fit_impl. Sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.remember import remembered
from ...ledger.units import MIB
from ...models.arch.blocks import Moe
from .layout import ServerLayout, device_bytes
from .versions import EACH_STREAM, FUSED_UP, OUTPUT_FIRST
from .weights import HOST

ALIGN = 256  # tokens, to which a context is rounded down
# What of a partial layer is not on its GPU: all that follows the attention, all but `up`, `down`
# alone, or the experts alone.
ATTENTION, UP, GATE, EXPERTS = "attention", "up", "gate", "experts"


class FitRule(Struct, frozen=True, kw_only=True):
    """What may be lowered, and what must stay free.

    - `free`: of each GPU, with llama-server's own process there
    - `margin`: --fit-target, of each GPU
    - `least_context`: --fit-ctx; `lowers_context`: nobody gave -c
    - `lowers_layers`: nobody gave -ngl, -ts, -ot or --n-cpu-moe
    """

    free: tuple[int, ...]
    margin: int = 1024 * MIB
    least_context: int = 4096
    lowers_context: bool = False
    lowers_layers: bool = True


class GpuLayers(Struct, frozen=True):
    """Layers of one GPU; of the last `parts` some tensors are elsewhere: of the first of them what
    `first` says, of the others the experts.
    """

    layers: int = 0
    parts: int = 0
    first: str = EXPERTS
    spills_on: bool = False  # the first part goes to the next GPU

    @property
    def whole(self) -> int:
        """Layers that are complete."""
        return self.layers - self.parts


@remembered(32, always=True)
def fitted(layout: ServerLayout, rule: FitRule) -> ServerLayout:
    """The server as --fit leaves it; unchanged where enough stays free."""
    if layout.single_gpu is not None and layout.gpus > 1:  # the others are no devices
        one = replace(layout, gpus=1, single_gpu=None)
        one = fitted(one, replace(rule, free=rule.free[:1]))
        return replace(one, gpus=layout.gpus, single_gpu=layout.single_gpu)
    used = used_bytes(layout)
    targets = [free - rule.margin for free in rule.free]
    if all(one <= most for one, most in zip(used, targets, strict=True)):
        return layout
    if rule.lowers_context and sum(used) > sum(targets):
        layout, done = _shorter(layout, rule, used, sum(targets))
        if done:
            return layout
    return _Layers(layout, targets).placed() if rule.lowers_layers else layout


def used_bytes(layout: ServerLayout) -> list[int]:
    """Model, cache and compute buffers of each GPU."""
    found = device_bytes(layout, whole=False)[:-1]
    return [one.weights + one.cache + one.compute for one in found]


def _shorter(
    layout: ServerLayout, rule: FitRule, used: Sequence[int], target: int
) -> tuple[ServerLayout, bool]:
    """The server with a context that fits by interpolation, and whether that is enough."""
    streams = layout.cells.streams if layout.build >= EACH_STREAM else 1
    least, gpus = rule.least_context * streams, layout.gpus
    if layout.context <= least:
        return layout, False
    if gpus > 1:
        layers = len(layout.file.arch.layers)
        weights = sum(one.weights for one in device_bytes(layout, whole=False)[:-1])
        share = 6 if _is_moe(layout) else 2
        target -= (gpus + 1) * (weights // min(layout.gpu_layers, layers)) // share
    short = replace(layout, context=least)
    low, high = sum(used_bytes(short)), sum(used)
    if target <= low:
        return short, False
    context = least + (layout.context - least) * (target - low) // (high - low)
    context = max(context - context % (ALIGN * streams), least)
    return replace(layout, context=context), gpus == 1


def _is_moe(layout: ServerLayout) -> bool:
    return any(isinstance(layer.mlp, Moe) for layer, _, _ in layout.file.arch.runs)


class _Layers:
    """The search for the layers of each GPU."""

    def __init__(self, layout: ServerLayout, targets: Sequence[int]) -> None:
        self.layout, self.targets = layout, targets
        self.count = len(layout.file.arch.layers) + 1
        self.moe = _is_moe(layout)
        self.last = layout.gpus - 1

    def placed(self) -> ServerLayout:
        """Dense layers from the last GPU to the first, then their experts from the first on."""
        gpus = [GpuLayers() for _ in range(self.layout.gpus)]
        for one in reversed(range(len(gpus))):
            gpus = self._filled(gpus, one)
        if self.moe and self._surplus() > 0:
            gpus = self._with_experts(gpus)
        return self._layout(gpus)

    def _surplus(self) -> int:
        """What is left of all GPUs with every dense tensor on them."""
        experts = partial(_pattern, build=self.layout.build)
        overrides = tuple((experts(i, EXPERTS), HOST) for i in range(self.count - 1))
        return sum(self.targets) - sum(used_bytes(replace(self.layout, overrides=overrides)))

    def _filled(self, gpus: list[GpuLayers], one: int) -> list[GpuLayers]:
        """As many of the layers that no GPU has, without experts, as fit on a GPU."""
        free = self.count - sum(other.layers for other in gpus[one + 1 :])

        def with_layers(layers: int) -> list[GpuLayers]:
            parts = layers - (one == self.last and layers > 0) if self.moe else 0
            return _replaced(gpus, one, GpuLayers(layers, parts))

        return with_layers(self._most(with_layers, 0, free, one)) if free else gpus

    def _most(self, make: Callable[[int], list[GpuLayers]], low: int, high: int, one: int) -> int:
        """The most layers of `make` that fit on a GPU, by false position as llama.cpp searches."""
        least, most = self._used(make(low))[one], self._used(make(high))[one]
        target = self.targets[one]
        if most <= target:
            return high
        while high - low > 1:
            step = (high - low) * (target - least) // (most - least)
            tried = low + min(max(step, 1), high - low - 1)
            used = self._used(make(tried))[one]
            if used <= target:
                low, least = tried, used
            else:
                high, most = tried, used
        return low

    def _with_experts(self, gpus: list[GpuLayers]) -> list[GpuLayers]:
        """Dense layers of the last GPUs become whole layers of the first."""
        first = next((i for i, one in enumerate(gpus) if one.layers), len(gpus))
        one = 0
        while one <= first < len(gpus):
            moved = partial(_moved, gpus, one, first)
            movable = sum(other.parts for other in gpus[first:])
            gpus = moved(self._most(moved, 0, movable, one))
            rest = range(first, len(gpus))
            first = next((i for i in rest if gpus[i].parts), self.last)
            gpus = self._with_part(gpus, one, first)
            one += 1
        return gpus

    def _with_part(self, gpus: list[GpuLayers], one: int, first: int) -> list[GpuLayers]:
        """One more layer of which a part fits."""
        source = gpus[first]
        if source.parts == 0 or source.layers <= (one == self.last):
            return gpus
        less = _replaced(gpus, first, GpuLayers(source.layers - 1, source.parts - 1))
        for tried in ((UP, GATE), (ATTENTION,)):
            best = None
            for part in tried:
                mine = less[one]
                more = GpuLayers(mine.layers + 1, mine.parts + 1, part, one < self.last)
                made = _replaced(less, one, more)
                used = self._used(made)
                near = range(one, min(one + 2, len(gpus)))
                if not all(used[i] < self.targets[i] for i in near):
                    break
                best = made
            if best is not None:
                return best
        return gpus

    def _used(self, gpus: list[GpuLayers]) -> list[int]:
        return used_bytes(self._layout(gpus))

    def _layout(self, gpus: list[GpuLayers]) -> ServerLayout:
        """The server with these layers on its GPUs."""
        total = sum(one.layers for one in gpus)
        place, overrides = self.count - total, list[tuple[str, int]]()
        for i, one in enumerate(gpus):
            place += one.whole
            for k in range(one.parts):
                part = one.first if k == 0 else EXPERTS
                goes = i + 1 if k == 0 and one.spills_on else HOST
                overrides.append((_pattern(place + k, part, self.layout.build), goes))
            place += one.parts
        several = len(gpus) > 1 and total
        # before b7468 the output is the last of the layers that -ngl counts
        counted = total if self.layout.build >= OUTPUT_FIRST or total == self.count else total - 1
        return replace(
            self.layout,
            gpu_layers=max(counted, 0),
            shares=tuple(float(one.layers) for one in gpus) if several else (),
            overrides=tuple(overrides),
        )


def _replaced(gpus: Sequence[GpuLayers], place: int, one: GpuLayers) -> list[GpuLayers]:
    return [*gpus[:place], one, *gpus[place + 1 :]]


def _moved(gpus: Sequence[GpuLayers], one: int, first: int, count: int) -> list[GpuLayers]:
    """GPUs after `count` dense layers, from GPU `first` on, are whole layers of GPU `one`."""
    found, left = list(gpus), count
    for i in range(first, len(gpus)):
        other = found[i]
        took = min(left, other.parts)
        left -= took
        found[i] = GpuLayers(other.layers - took, other.parts - took)
    mine = found[one]
    found[one] = GpuLayers(mine.layers + count, mine.parts)
    return found


def _pattern(layer: int, part: str, build: int) -> str:
    """The tensors of a layer that are not on its GPU."""
    fused = "|gate_up" if build >= FUSED_UP else ""
    names = {
        ATTENTION: f"ffn_(up|gate{fused}|down).*",
        UP: f"ffn_(gate{fused}|down).*",
        GATE: "ffn_down.*",
        EXPERTS: f"ffn_(up|down{fused}|gate)_(ch|)exps",
    }
    return rf"blk\.{layer}\.{names[part]}"
