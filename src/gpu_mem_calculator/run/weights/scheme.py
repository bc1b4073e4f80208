"""A quantized weight format: what a matrix becomes, and which parameters stay unquantized."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.num import ceil_div
from ...ledger.remember import remembered
from .shards import EXPERT, EXPERTS, HEAD, LINEAR, ShardedParameter

Stored = tuple[tuple[str, int], ...]
WEIGHT, SCALES, SECOND = "", "scales", "swizzled scales"
ZEROS, INDEX, REST = "zeros", "order", "constants"


class MatrixFormat(Struct, frozen=True, kw_only=True):
    """How one matrix is stored.

    - `bits`: bits of a weight; `scale_bits`: bits of a scale
    - `rows`, `columns`: a scale belongs to `rows` outputs by `columns` inputs; 0 means all
    - `flat`: a scale belongs to `flat` consecutive elements, independent of the shape
    - `zero_bits`: bits of a zero point; one for each scale
    - `index`: bits for each input of the order of the inputs (GPTQ's g_idx)
    - `nested`: scales have 8 bits, and one fp32 scale for `nested` of them (double quantization)
    - `constants`: further bytes of each matrix
    - `symmetric`: all zero points are equal; `ordered`: inputs are permuted. Servers may use both.
    - `hidden_multiple`, `inner_multiple`: servers round the sizes of experts up to these
    - `scale_rows`, `scale_columns`: the shape of the scales is rounded up to these
    - `swizzled_rows`: rows of a second copy of the scales are rounded up to this; 0: no copy
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
    hidden_multiple: int = 1
    inner_multiple: int = 1
    scale_rows: int = 1
    scale_columns: int = 1
    swizzled_rows: int = 0

    def stored(self, copies: int, outs: int, ins: int) -> Stored:
        """Suffix and bytes of the tensors that `copies` equal matrices become."""
        scales = self._scales(outs, ins, self.scale_rows, self.scale_columns)
        sizes = {WEIGHT: ceil_div(outs * ins * self.bits, 8), SCALES: scales * self.scale_bits // 8}
        if self.nested:
            sizes[SCALES] = scales + 4 * ceil_div(scales, self.nested)
        if self.swizzled_rows:
            sizes[SECOND] = self._scales(outs, ins, self.swizzled_rows, 2) * self.scale_bits // 8
        sizes[ZEROS] = ceil_div(scales * self.zero_bits, 8)
        sizes[INDEX] = ins * self.index // 8
        sizes[REST] = self.constants
        return tuple((name, int(copies * size)) for name, size in sizes.items() if size)

    def _scales(self, outs: int, ins: int, row_multiple: int, column_multiple: int) -> int:
        """Number of scales of one matrix, rows and columns rounded up to multiples."""
        if self.flat:
            return int(ceil_div(outs * ins, self.flat))
        rows = ceil_div(outs, self.rows) if self.rows else 1
        columns = ceil_div(ins, self.columns) if self.columns else 1
        return int(_round_up(rows, row_multiple) * _round_up(columns, column_multiple))


def _round_up(size: int, multiple: int) -> int:
    return int(ceil_div(size, multiple)) * multiple


class WeightFormat(Struct, frozen=True, kw_only=True):
    """The format of a whole model; only matrices of layers are packed.

    - `name`: its name in a run file; `title`: its description
    - `pack`: how a matrix is stored; None: unquantized
    - `skip`: modules that are not packed (a `re:` pattern, a `*` pattern, or a name or part of one)
    - `head`: the output head is packed as well; `experts`: only experts are packed
    - `bias_bits`: bits of the experts' biases, 0: the model's
    """

    name: str
    title: str = ""
    pack: MatrixFormat | None = None
    skip: tuple[str, ...] = ()
    head: bool = False
    experts: bool = False
    bias_bits: int = 0

    def packs(self, parameter: ShardedParameter) -> bool:
        """Whether a parameter is quantized."""
        if self.pack is None or parameter.role not in (LINEAR, EXPERT, HEAD):
            return False
        if parameter.role == HEAD and (not self.head or len(parameter.shape) < 2):
            return False
        if self.experts and parameter.role != EXPERT:
            return False
        return not _skipped(parameter.name.removesuffix(".weight"), self.skip)

    def stored(self, parameter: ShardedParameter, bits: int) -> Stored:
        """Suffix and bytes of each tensor that a parameter becomes."""
        pack = self.pack
        if pack is None or not self.packs(parameter):
            return ((WEIGHT, self._plain(parameter, parameter.bits or bits)),)
        copies, outs, ins = parameter.matrix
        if parameter.role == EXPERT:
            outs, ins = _padded_expert(pack, parameter.name, outs, ins)
        return pack.stored(copies, outs, ins)

    def _plain(self, parameter: ShardedParameter, bits: int) -> int:
        """Bytes of an unquantized parameter; experts' biases are padded like the experts."""
        if (
            self.pack is None
            or parameter.part != EXPERTS
            or "bias" not in parameter.name
            or parameter.bits
        ):
            return parameter.numel * bits // 8
        outs, _ = _padded_expert(self.pack, parameter.name, parameter.shape[-1], 1)
        return parameter.numel // parameter.shape[-1] * outs * (self.bias_bits or bits) // 8

    def changed(self, **changes: object) -> WeightFormat:
        """A copy with other fields of `pack`."""
        assert self.pack is not None
        return replace(self, pack=replace(self.pack, **changes))


def _padded_expert(pack: MatrixFormat, name: str, outs: int, ins: int) -> tuple[int, int]:
    """Padded outputs and inputs of an expert; gate and up are one matrix, and each is padded."""
    if "down" in name:
        return _round_up(outs, pack.hidden_multiple), _round_up(ins, pack.inner_multiple)
    return _round_up(outs, 2 * pack.inner_multiple if pack.inner_multiple > 1 else 1), _round_up(
        ins, pack.hidden_multiple
    )


@remembered(65536, always=True)
def _skipped(module: str, skip: tuple[str, ...]) -> bool:
    """Whether a list of modules contains this one, one above it, or a part of its name."""
    return any(_matches(module, pattern) for pattern in skip)


def _matches(module: str, pattern: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    if "*" in pattern:
        return fnmatchcase(module, pattern) or fnmatchcase(module, f"{pattern}.*")
    return f".{pattern.strip('.')}." in f".{module}."
