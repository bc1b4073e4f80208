"""The tensors of a checkpoint, from the headers of its files.

safetensors: eight bytes with the length of a JSON object, and that object. GGUF (ggml's
docs/gguf.md, versions 2 and 3): magic, version, counts, metadata, then one record for each tensor.
"""

from __future__ import annotations

import json
import struct
from math import prod
from typing import Any

from msgspec import Struct

from ...ledger.units import GIB, MIB
from ...run.weights.ggml_types import TYPE_BY_NUMBER, ggml_bytes
from .bounds import HubError
from .reader import Read

SAFETENSORS_MOST = 100 * MIB  # the format's own limit
CHUNK, MOST = MIB, GIB  # bytes of one read; the largest text or list of a header
DEEPEST = 8  # lists in lists
MOST_DIMS, GGUF_DIMS = 64, 4  # of a tensor: the limits of torch and of ggml
MAGIC = b"GGUF"
# GGUF's value types: struct codes of the plain ones, by number.
PLAIN = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
FLOATS = ("F64", "F32", "F16", "BF16")
SCALES = ("scale", "zeros", "absmax", "quant_map")
PACKED = ("I8", "U8", "I16", "U16", "I32", "U32")  # weights of 1 to 8 bits, several to an integer
INDICES = ("I64", "U64", "BOOL")


class CheckpointTensor(Struct, frozen=True):
    """One tensor of a checkpoint: name, type as the file names it, shape, bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int

    @property
    def cast_elements(self) -> int:
        """Elements of a floating-point weight, which a server casts to its dtype; 0 for quantized
        weights and their scales, which stay as they are.
        """
        plain = self.dtype in FLOATS and not any(word in self.name for word in SCALES)
        return prod(self.shape) if plain else 0

    @property
    def elements(self) -> tuple[int, int]:
        """The least and the most parameters that it may hold; scales and indices hold none."""
        if self.dtype in INDICES or any(word in self.name for word in SCALES):
            return 0, 0
        if self.dtype in PACKED:
            return self.num_bytes, 8 * self.num_bytes
        return prod(self.shape), prod(self.shape)


def safetensors(read: Read, where: str) -> tuple[CheckpointTensor, ...]:
    """The tensors of a safetensors file."""
    start = read(0, 8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or not 2 <= length <= SAFETENSORS_MOST:
        raise HubError(f"{where}: not a safetensors file")
    data = read(8, length)
    try:
        header: dict[str, Any] = json.loads(data)
        return tuple(_row(name, **row) for name, row in header.items() if name != "__metadata__")
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise HubError(f"{where}: its safetensors header is broken") from None


def _row(name: str, dtype: str, shape: list[int], data_offsets: list[int]) -> CheckpointTensor:
    """A tensor of a safetensors header; a ValueError where the format does not allow it."""
    start, end = data_offsets
    sizes = (*shape, start, end)
    valid = all(isinstance(size, int) and 0 <= size < 2**63 for size in sizes)
    if not (valid and isinstance(dtype, str) and start <= end and len(shape) <= MOST_DIMS):
        raise ValueError(name)
    return CheckpointTensor(name, dtype, tuple(shape), end - start)


class GgufHeader(Struct, frozen=True):
    """A GGUF file's metadata and tensors; arrays of over 4,096 values (the tokens) are None."""

    metadata: dict[str, Any]
    tensors: tuple[CheckpointTensor, ...]


class _GgufParser:
    """Parses a GGUF header; `have` are the bytes read so far, in chunks of at least a MiB."""

    def __init__(self, read: Read, where: str) -> None:
        self.read, self.where, self.at, self.have = read, where, 0, bytearray()

    def take(self, count: int) -> bytes:
        if count > MOST:
            raise HubError(f"{self.where}: its GGUF header is broken")
        while len(self.have) < self.at + count:
            more = self.read(len(self.have), max(CHUNK, count))
            if not more:
                raise HubError(f"{self.where}: its GGUF header ends too early")
            self.have += more
        data = bytes(self.have[self.at : self.at + count])
        self.at += count
        return data

    def number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]

    def text(self) -> str:
        return self.take(self.number("Q")).decode("utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == STRING:
            return self.text()
        if kind != ARRAY or depth > DEEPEST:
            if kind not in PLAIN:
                raise HubError(f"{self.where}: GGUF value of type {kind} is not known")
            return self.number(PLAIN[kind])
        inner, count = self.number("I"), self.number("Q")
        if inner in PLAIN and count > 4096:
            self.take(count * struct.calcsize(f"<{PLAIN[inner]}"))
            return None
        values = [self.value(inner, depth + 1) for _ in range(count)]
        return values if count <= 4096 else None


def gguf(read: Read, where: str) -> GgufHeader:
    """The header of a GGUF file."""
    parser = _GgufParser(read, where)
    if parser.take(4) != MAGIC:
        raise HubError(f"{where}: not a GGUF file")
    version = parser.number("I")
    if version not in (2, 3):
        raise HubError(f"{where}: GGUF version {version} is not known; versions 2 and 3 are")
    num_tensors, num_values = parser.number("Q"), parser.number("Q")
    metadata = {}
    for _ in range(num_values):
        name = parser.text()
        metadata[name] = parser.value(parser.number("I"))
    return GgufHeader(metadata, tuple(_tensor(parser) for _ in range(num_tensors)))


def _tensor(parser: _GgufParser) -> CheckpointTensor:
    name = parser.text()
    dims = parser.number("I")
    if dims > GGUF_DIMS:
        raise HubError(f"{parser.where}: its GGUF header is broken")
    shape = tuple(parser.number("Q") for _ in range(dims))
    kind = parser.number("I")
    parser.number("Q")  # the offset of its data
    if kind not in TYPE_BY_NUMBER:
        raise HubError(f"{parser.where}: tensor {name!r} has ggml type {kind}, which is not known")
    return CheckpointTensor(
        name, TYPE_BY_NUMBER[kind], shape, ggml_bytes(TYPE_BY_NUMBER[kind], prod(shape))
    )
