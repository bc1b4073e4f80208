"""The device of each layer, and the weights of each device.

llama.cpp b10586 src/llama-model.cpp load_tensors. GPUs are numbered from 0, the host is the last.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from ctypes import c_float
from itertools import accumulate

from msgspec import Struct

from ...ledger.remember import remembered
from ...models.arch.arch import Arch
from ...run.run import StoredTensor
from ...run.weights import gguf
from ...run.weights.ggml_types import BLOCKS
from .versions import OUTPUT_FIRST

ALIGNMENT = 128  # of a tensor in a CUDA buffer
ALL = 10**6  # -ngl all
HOST = -1  # of a pattern: the host, whose number depends on the GPUs


class ModelFile(Struct, frozen=True):
    """A model's tensors: as llama-quantize writes them in `ftype`, or `stored` in a GGUF file."""

    arch: Arch
    ftype: str
    build: int
    stored: tuple[StoredTensor, ...] = ()

    def tensors(self) -> tuple[gguf.GgufTensor, ...]:
        """Every tensor, with its layer and its bytes."""
        if not self.stored:
            return gguf.tensors(self.arch, self.ftype, None, self.build)
        last = len(self.arch.layers)
        return tuple(
            gguf.GgufTensor(name, _layer(name, last), "", 0, size) for name, size, _ in self.stored
        )

    def kinds(self) -> dict[str, str]:
        """ggml's type of each tensor, by name; of a stored one by its size."""
        tensors = gguf.tensors(self.arch, self.ftype, None, self.build)
        kinds = {tensor.name: tensor.kind for tensor in tensors}
        elements = {tensor.name: tensor.elements for tensor in tensors}
        for name, size, _ in self.stored:
            if name in kinds:
                kinds[name] = _kind(size, elements[name]) or kinds[name]
        return kinds


def _layer(name: str, last: int) -> int:
    head, _, rest = name.partition(".")
    number = rest.partition(".")[0]
    if head == "blk" and number.isdecimal():
        return min(int(number), last)
    return -1 if head in ("token_embd", "position_embd", "token_types") else last


def _kind(size: int, elements: int) -> str | None:
    """The ggml type in which `elements` take `size` bytes; None where there is none."""
    fits = (kind for kind, (block, each) in BLOCKS.items() if size * block == elements * each)
    return next(fits, None) if elements else None


@remembered(64, always=True)
def layer_devices(
    layers: int,
    gpus: int,
    gpu_layers: int,
    build: int,
    shares: Sequence[float] = (),
    single_gpu: int | None = None,
) -> tuple[int, ...]:
    """The device of each layer, and of the output after them.

    `gpu_layers` is -ngl: the last layers are on GPUs, in equal parts or by `shares`; the output
    counts as a layer, the first of them from b7468 on, else the last. `single_gpu` has all if set.
    """
    first = max(layers + (build >= OUTPUT_FIRST) - gpu_layers, 0)
    count = min(gpu_layers, layers + 1)
    parts = list(accumulate(map(_single, shares or [1.0] * gpus), lambda a, b: _single(a + b)))
    ends = [_single(part / parts[-1]) for part in parts]

    def device(place: int) -> int:
        if not 0 <= place < count:
            return gpus
        return bisect_right(ends, _single(place / count)) if single_gpu is None else single_gpu

    return tuple(device(place - first) for place in range(layers + 1))


def _single(number: float) -> float:
    """A number rounded to fp32."""
    return c_float(number).value


Overrides = tuple[tuple[str, int], ...]
"""-ot: a pattern that names of tensors have, and the device of those that have it; the first of
several counts."""


def host_experts(layers: int) -> Overrides:
    """--n-cpu-moe: the experts of the first layers, on the host (common/common.h
    LLM_FFN_EXPS_REGEX).
    """
    return tuple((rf"blk\.{i}\.ffn_(up|down|gate|gate_up)_(ch|)exps", HOST) for i in range(layers))


def all_experts() -> Overrides:
    """--cpu-moe: every layer's experts, on the host."""
    return ((r"\.ffn_(up|down|gate|gate_up)_(ch|)exps", HOST),)


@remembered(64, always=True)
def moved_tensors(names: tuple[str, ...], overrides: Overrides) -> dict[str, int]:
    """The device of each tensor that a pattern places."""
    if len({device for _, device in overrides}) == 1:  # one search instead of many
        overrides = (("|".join(pattern for pattern, _ in overrides), overrides[0][1]),)
    patterns = [(re.compile(pattern), device) for pattern, device in overrides]
    found: dict[str, int] = {}
    for name in names:
        device = next((to for pattern, to in patterns if pattern.search(name)), None)
        if device is not None:
            found[name] = device
    return found


def model_buffers(
    file: ModelFile, devices: tuple[int, ...], gpus: int, moved: Mapping[str, int]
) -> list[int]:
    """Bytes of weights on each device, the host last.

    A tied head is a copy of the embedding where the output is on a GPU. `devices`: those of each
    layer and of the output; `moved`: those of tensors that are elsewhere.
    """
    totals = [0] * (gpus + 1)
    for place, tensor in placed_tensors(file, devices, gpus, moved):
        aligned = -(-tensor.bytes // ALIGNMENT) * ALIGNMENT
        totals[place] += aligned if place < gpus else tensor.bytes
    return totals


def placed_tensors(
    file: ModelFile, devices: tuple[int, ...], gpus: int, moved: Mapping[str, int]
) -> Iterator[tuple[int, gguf.GgufTensor]]:
    """Every tensor with its device; the arguments are those of `model_buffers`."""
    last, tied = len(file.arch.layers), file.arch.head is None
    for tensor in file.tensors():
        place = gpus if tensor.layer < 0 else devices[min(tensor.layer, last)]
        yield moved.get(tensor.name, place), tensor
        if tied and tensor.name == "token_embd.weight" and devices[last] < gpus:
            yield devices[last], tensor
