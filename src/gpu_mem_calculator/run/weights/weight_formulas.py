"""The formulas of a rank's weights: shapes of its matrices × bytes of an element."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import cache, partial
from math import prod

from ...ledger.formula import SIMULATED, Formula, bytes_each, formula_text
from ...models.arch.arch import Arch
from ..run import Run
from . import WeightFormat
from .rank_weights import BITS, ROUNDED, checkpoint_items, group_title, run_format
from .scheme import SCALES, WEIGHT
from .shards import ServerShard, ShardedParameter, held

Shape = tuple[int, ...]
Text = tuple[str, str]  # name of an item, and a formula
Unit = tuple[str, int]  # what is counted, and bits of one
Units = dict[Unit, Counter[Shape]]
MOST_SHAPES = 6  # of a group; with more, their elements are added up
PARAMETERS, SCALE, REST = "parameters", "scales", "of zero points, order and constants"
FROM_CHECKPOINT = f"{SIMULATED}the rank's share of the tensors in the checkpoint's headers"
ROUNDING = f"{SIMULATED}the allocator's blocks less the tensors in them"


def weight_formulas(
    run: Run,
    shard: ServerShard,
    stored_format: WeightFormat | None = None,
    extra: Iterable[Text] = (),
) -> Callable[[str], Formula]:
    """A function from the name of an item of `weight_items` to its formula.

    The arguments are those of `weight_items`, but that `extra` has formulas for bytes.
    """
    weight_format = run_format(run) if stored_format is None else stored_format
    extra_texts = tuple(extra)

    @cache
    def texts() -> dict[str, str]:
        return _all_formulas(run, shard, weight_format, extra_texts)

    def text(name: str) -> str:
        return texts().get(name, "")

    return lambda name: partial(text, name)


def _all_formulas(
    run: Run, shard: ServerShard, weight_format: WeightFormat, extra: tuple[Text, ...]
) -> dict[str, str]:
    bits = BITS[run.precision]
    known = weight_format == run_format(run) and checkpoint_items(run, shard, bits)
    if known:
        texts = dict.fromkeys((name for name, _ in known), FROM_CHECKPOINT)
    else:
        texts = _group_formulas(run.arch, shard, weight_format, bits)
    given = run.parameters_given
    if given is not None and not known:
        share = f"{int(given):,} parameters given / {int(run.arch.own_parameters):,}"
        texts = {name: f"floor(({text}) × {share})" for name, text in texts.items()}
    more: dict[str, list[str]] = defaultdict(list)
    for name, text in extra:
        more[name].append(text)
    for name, added in more.items():
        counted = (f"{n} × {text}" if n > 1 else text for text, n in Counter(added).items())
        texts[name] = " + ".join([*([texts[name]] if name in texts else []), *counted])
    return {ROUNDED: ROUNDING, **texts}


def less(formula: Formula, offloaded: int) -> Formula:
    """A formula less bytes that are kept in host RAM."""
    if not offloaded:
        return formula
    return lambda: f"{formula_text(formula)} - {offloaded:,} offloaded"


def parameters_formula(
    parameters: Iterable[ShardedParameter], weight_format: WeightFormat, bits: int
) -> str:
    """The formula of all parameters together."""
    units: Units = defaultdict(Counter)
    for parameter in parameters:
        for suffix, size in weight_format.stored(parameter, bits):
            unit, shape = _shape(parameter, weight_format, bits, suffix, size)
            units[unit][shape] += 1
    return _all_units(units)


def _all_units(units: Units) -> str:
    return " + ".join(_sum(shapes, *unit) for unit, shapes in units.items())


def _group_formulas(
    arch: Arch, shard: ServerShard, weight_format: WeightFormat, bits: int
) -> dict[str, str]:
    """The formula of each group of tensors, by its title."""
    groups: dict[str, Units] = defaultdict(lambda: defaultdict(Counter))
    for parameter in held(arch, shard):
        for suffix, size in weight_format.stored(parameter, bits):
            unit, shape = _shape(parameter, weight_format, bits, suffix, size)
            groups[group_title(parameter, suffix)][unit][shape] += 1
    return {title: _all_units(units) for title, units in groups.items()}


def _shape(
    parameter: ShardedParameter, weight_format: WeightFormat, bits: int, suffix: str, size: int
) -> tuple[Unit, Shape]:
    """What a tensor counts, and its shape; of a padded one the number of elements."""
    pack = weight_format.pack
    packed = pack is not None and weight_format.packs(parameter)
    if suffix == WEIGHT:
        each = pack.bits if packed and pack is not None else parameter.bits or bits
        whole = prod(parameter.shape) * each == 8 * size
        shape = tuple(sorted(parameter.shape, reverse=True))
        return (PARAMETERS, each), shape if whole else (8 * size // each,)
    if suffix == SCALES and pack is not None and not pack.nested:
        return (SCALE, pack.scale_bits), (8 * size // pack.scale_bits,)
    return (SCALE if suffix == SCALES else REST, 8), (size,)


def _sum(shapes: Counter[Shape], name: str, bits: int) -> str:
    """`(64 × 4,096 × 4,096 + 64 × 1,024 × 4,096) parameters × 2 bytes`."""
    if len(shapes) > MOST_SHAPES:
        shapes = Counter({(sum(prod(shape) * n for shape, n in shapes.items()),): 1})
    products = [
        " × ".join(f"{size:,}" for size in ((count, *shape) if count > 1 else shape))
        for shape, count in sorted(shapes.items(), key=lambda one: -prod(one[0]) * one[1])
    ]
    text = " + ".join(products)
    return f"{f'({text})' if len(products) > 1 else text} {name} × {bytes_each(bits)}"
