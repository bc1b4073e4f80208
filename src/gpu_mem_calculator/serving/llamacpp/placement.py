"""Which device has which layer, and so which weights.

llama.cpp b10586 src/llama-model.cpp load_tensors. GPUs are numbered from 0, the host comes last.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from ctypes import c_float
from itertools import accumulate

from msgspec import Struct

from ...ledger.remember import remembered
from ...model.arch import Arch
from ...run.run import StoredTensor
from ...weights import gguf
from ...weights.ggml_types import BLOCKS
from .versions import OUTPUT_FIRST

ALIGNMENT = 128  # of a tensor in a CUDA buffer
ALL = 10**6  # -ngl all


class ModelFile(Struct, frozen=True):
    """A model's tensors: as llama-quantize makes them, or as a file has them."""

    arch: Arch
    ftype: str
    build: int
    stored: tuple[StoredTensor, ...] = ()

    def tensors(self) -> tuple[gguf.GgufTensor, ...]:
        """Every tensor, with its layer."""
        if not self.stored:
            return gguf.tensors(self.arch, self.ftype, None, self.build)
        last = len(self.arch.layers)
        return tuple(gguf.GgufTensor(name, _layer(name, last), "", 0, size)
                     for name, size, _ in self.stored)  # fmt: skip

    def kinds(self) -> dict[str, str]:
        """The type of each tensor that the file type has one for."""
        made = {t.name: t.kind for t in gguf.tensors(self.arch, self.ftype, None, self.build)}
        if not self.stored:
            return made
        elements = {t.name: t.elements
                    for t in gguf.tensors(self.arch, self.ftype, None, self.build)}  # fmt: skip
        for name, size, _ in self.stored:
            if name in made:
                made[name] = _kind(size, elements[name]) or made[name]
        return made


def _layer(name: str, last: int) -> int:
    head, _, rest = name.partition(".")
    number = rest.partition(".")[0]
    if head == "blk" and number.isdecimal():
        return min(int(number), last)
    return -1 if head in ("token_embd", "position_embd", "token_types") else last


def _kind(size: int, elements: int) -> str | None:
    """The type whose elements take so many bytes."""
    for kind, (block, each) in BLOCKS.items():
        if elements and size * block == elements * each:
            return kind
    return None


@remembered(64, always=True)
def devices(layers: int, gpus: int, offloaded: int, build: int, shares: Sequence[float] = (),
            only: int | None = None) -> tuple[int, ...]:  # fmt: skip
    """The device of each layer, and of the output behind them.

    `offloaded` is -ngl: the last layers go to GPUs, in equal parts or by `shares`; the output
    counts as a layer, the first of them from b7468 on, else the last. `only`: one GPU has all.
    """
    first = max(layers + (build >= OUTPUT_FIRST) - offloaded, 0)
    count = min(offloaded, layers + 1)
    parts = list(accumulate(map(_single, shares or [1.0] * gpus), lambda a, b: _single(a + b)))
    ends = [_single(part / parts[-1]) for part in parts]
    found = []
    for place in range(layers + 1):
        if place < first or place - first >= count:
            found.append(gpus)
        elif only is not None:
            found.append(only)
        else:
            found.append(bisect_right(ends, _single((place - first) / count)))
    return tuple(found)


def _single(number: float) -> float:
    """A number as 32 bits hold it."""
    return c_float(number).value


def expert(name: str) -> bool:
    """Whether --n-cpu-moe takes a tensor to the host (common/common.h LLM_FFN_EXPS_REGEX)."""
    return "_exps" in name


def model_buffers(
    file: ModelFile, where: tuple[int, ...], gpus: int, on_host: int = 0
) -> list[int]:
    """Bytes of weights on each device, the host last; the experts of the first layers stay there.

    A tied head is a copy of the embedding where the output is in a GPU.
    """
    totals = [0] * (gpus + 1)
    last, tied = len(file.arch.layers), file.arch.head is None
    for tensor in file.tensors():
        place = gpus if tensor.layer < 0 else where[min(tensor.layer, last)]
        if expert(tensor.name) and tensor.layer < on_host:
            place = gpus
        totals[place] += _padded(tensor.bytes, place < gpus)
        if tied and tensor.name == "token_embd.weight" and where[last] < gpus:
            totals[where[last]] += _padded(tensor.bytes, True)
    return totals


def _padded(size: int, aligned: bool) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT if aligned else size
