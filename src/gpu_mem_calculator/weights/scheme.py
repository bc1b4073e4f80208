"""A quantized format: what a matrix becomes, and which parameters it leaves as they are."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from msgspec import Struct
from msgspec.structs import replace

from ..ledger.num import ceil_div
from ..ledger.remember import remembered
from .shards import EXPERT, EXPERTS, HEAD, LINEAR, ShardedParameter

Stored = tuple[tuple[str, int], ...]
WEIGHT, SCALES, SECOND, ZEROS, INDEX, REST = (
    "", "scales", "swizzled scales", "zeros", "order", "constants")  # fmt: skip


class MatrixFormat(Struct, frozen=True, kw_only=True):
    """How one matrix is stored.

    A scale belongs to `rows` outputs by `columns` inputs; 0 means all of them; or to `flat`
    elements in a row, whatever the shape. Zero points have
    the width of the weights' own bits. `nested` scales are 8-bit, with one fp32 scale for so many
    of them (double quantization). `index` is the order of the inputs (GPTQ's g_idx), so many bits
    for each. `constants` are bytes of each matrix. `symmetric` zero points are all the same and
    `ordered` inputs are not in their own order, which an engine may make use of.
    """

    bits: int
    scale_bits: int = 32
    rows: int = 0
    columns: int = 0
    flat: int = 0
    zero_bits: int = 0
    index: int = 0
    nested: int = 0
    constants: int = 0
    symmetric: bool = False
    ordered: bool = False
    # as an engine holds experts: sizes up to a multiple, and a second copy of the scales
    hidden_multiple: int = 1
    inner_multiple: int = 1
    scale_rows: int = 1
    scale_columns: int = 1
    swizzled_rows: int = 0  # of the second copy

    def stored(self, copies: int, outs: int, ins: int) -> Stored:
        """Bytes of the tensors that `copies` equal matrices become."""
        scales = self._scales(outs, ins, self.scale_rows, self.scale_columns)
        found = {WEIGHT: ceil_div(outs * ins * self.bits, 8), SCALES: scales * self.scale_bits // 8}
        if self.nested:
            found[SCALES] = scales + 4 * ceil_div(scales, self.nested)
        if self.swizzled_rows:
            found[SECOND] = self._scales(outs, ins, self.swizzled_rows, 2) * self.scale_bits // 8
        found[ZEROS] = ceil_div(scales * self.zero_bits, 8)
        found[INDEX] = ins * self.index // 8
        found[REST] = self.constants
        return tuple((name, int(copies * size)) for name, size in found.items() if size)

    def _scales(self, outs: int, ins: int, up_rows: int, up_columns: int) -> int:
        """Scales of one matrix, their rows and columns up to a multiple."""
        if self.flat:
            return int(ceil_div(outs * ins, self.flat))
        rows = ceil_div(outs, self.rows) if self.rows else 1
        columns = ceil_div(ins, self.columns) if self.columns else 1
        return int(_round_up(rows, up_rows) * _round_up(columns, up_columns))


def _round_up(size: int, multiple: int) -> int:
    return int(ceil_div(size, multiple)) * multiple


class WeightFormat(Struct, frozen=True, kw_only=True):
    """A format over a whole model.

    Matrices of layers are packed, and nothing else; `skip` names modules that are not (a `re:`
    pattern, a `*` pattern, or a name or part of one), `head` adds the output, `experts` leaves
    all but experts. `bias_bits` is the width of experts' biases where it is not the model's.
    """

    name: str
    title: str = ""
    pack: MatrixFormat | None = None
    skip: tuple[str, ...] = ()
    head: bool = False
    experts: bool = False
    bias_bits: int = 0

    def packs(self, held: ShardedParameter) -> bool:
        """Whether a parameter is quantized."""
        if self.pack is None or held.role not in (LINEAR, EXPERT, HEAD):
            return False
        if held.role == HEAD and (not self.head or len(held.shape) < 2):
            return False
        if self.experts and held.role != EXPERT:
            return False
        return not _skipped(held.name.removesuffix(".weight"), self.skip)

    def stored(self, held: ShardedParameter, bits: int) -> Stored:
        """The tensors a parameter becomes: what is behind its name, and bytes."""
        pack = self.pack
        if pack is None or not self.packs(held):
            return ((WEIGHT, self._plain(held, held.bits or bits)),)
        copies, outs, ins = held.matrix
        if held.role == EXPERT:
            outs, ins = _padded_expert(pack, held.name, outs, ins)
        return pack.stored(copies, outs, ins)

    def _plain(self, held: ShardedParameter, bits: int) -> int:
        """A parameter that stays as it is; experts' biases are padded like the experts."""
        if self.pack is None or held.part != EXPERTS or "bias" not in held.name or held.bits:
            return held.numel * bits // 8
        outs, _ = _padded_expert(self.pack, held.name, held.shape[-1], 1)
        return held.numel // held.shape[-1] * outs * (self.bias_bits or bits) // 8

    def changed(self, **changes: object) -> WeightFormat:
        """The same with other packing."""
        assert self.pack is not None
        return replace(self, pack=replace(self.pack, **changes))


def _padded_expert(pack: MatrixFormat, name: str, outs: int, ins: int) -> tuple[int, int]:
    """gate and up stand in one matrix, and each is padded."""
    if "down" in name:
        return _round_up(outs, pack.hidden_multiple), _round_up(ins, pack.inner_multiple)
    return _round_up(outs, 2 * pack.inner_multiple if pack.inner_multiple > 1 else 1), _round_up(
        ins, pack.hidden_multiple
    )


@remembered(65536, always=True)
def _skipped(module: str, skip: tuple[str, ...]) -> bool:
    """Whether a list of modules names this one, one above it, or a part of its name."""
    return any(_matches(module, pattern) for pattern in skip)


def _matches(module: str, pattern: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    if "*" in pattern:
        return fnmatchcase(module, pattern) or fnmatchcase(module, f"{pattern}.*")
    return f".{pattern.strip('.')}." in f".{module}."
