"""A model's config, and the tensors of its checkpoint from the headers of its files, in a folder of
any kind.

safetensors: eight bytes with the length of a JSON object, and that object. GGUF (ggml's
docs/gguf.md, versions 2 and 3): magic, version, counts, metadata, then one record for each tensor.
The metadata becomes the config.json of the same model: llama.cpp b10586 (b21e4de7)
gguf-py/gguf/constants.py has `general.architecture`, and under its name the sizes.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.units import GIB, MIB
from ...run.weights.ggml_types import TYPE_BY_NUMBER, ggml_bytes
from . import tables
from .bounds import HubError, MissingFileError
from .names import leaves_folder
from .reader import Folder, Read

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


LATENT_ONLY = ("qk_rope_head_dim", "v_head_dim", "kv_lora_rank", "q_lora_rank")


def gguf_config(file: GgufHeader, where: str) -> dict[str, Any]:
    """The config.json of the model in a GGUF file, with its sizes only."""
    names, name = tables("checkpoint"), str(file.metadata.get("general.architecture"))
    if name not in names["families"]:
        advice = "give the model's config.json instead"
        raise HubError(f"{where}: GGUF architecture {name!r} is not known here; {advice}")
    family, keys = names["families"][name], names["keys"]
    values = {known: file.metadata.get(f"{name}.{key}") for key, known in keys.items()}
    sizes: dict[str, Any] = {key: value for key, value in values.items() if value is not None}
    required = ("block_count", "embedding_length")
    missing = [key for key in required if keys[key] not in sizes]
    if missing:
        raise HubError(f"{where}: its header has no {name}.{missing[0]}, which every model has")
    if name == "llama" and sizes.get("num_experts"):
        family = "mixtral"
    if family != "deepseek_v3":
        sizes = {key: value for key, value in sizes.items() if key not in LATENT_ONLY}
    elif "v_head_dim" in sizes:
        key_dim = file.metadata[f"{name}.attention.key_length_mla"]
        sizes["qk_nope_head_dim"] = key_dim - sizes["qk_rope_head_dim"]
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
        sizes.pop("head_dim", None)
    renamed = names["renamed"].get(family, {})
    shapes = {one.name: one.shape for one in file.tensors}
    vocab = shapes.get("token_embd.weight", (0, 0))[-1]
    return {
        "model_type": family,
        **{renamed.get(key, key): value for key, value in sizes.items()},
        "vocab_size": vocab,
        "tie_word_embeddings": "output.weight" not in shapes,
    }


CONFIG, INDEX, ONE = "config.json", "model.safetensors.index.json", "model.safetensors"
SHARD = re.compile(r"[^\x00-\x1f\x7f\\?#%:]+")
AT_ONCE = 8  # files whose headers are read at the same time
PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")  # llama.cpp's llama_split_path
POINTER = b"version https://git-lfs"


class Checkpoint(Struct, frozen=True, kw_only=True):
    """A model that was read.

    - `tensors`: empty where there is a config only, or headers were not requested
    - `form`: "safetensors" or "gguf"
    - `source`: where it was, in words
    """

    title: str
    config: dict[str, Any]
    tensors: tuple[CheckpointTensor, ...] = ()
    form: str = ""
    source: str = ""


def read_config(folder: Folder, title: str, source: str, file: str = CONFIG) -> Checkpoint:
    """The model of a config.json, without tensors."""
    config = json_object(folder.read_all(file), folder.where(file))
    return Checkpoint(title=title, config=config, form="safetensors", source=source)


def with_tensors(checkpoint: Checkpoint, folder: Folder) -> Checkpoint:
    """The same with its tensors, where none of its safetensors files is missing."""
    try:
        return replace(checkpoint, tensors=_tensors(folder, _shards(folder)))
    except MissingFileError:
        return checkpoint  # an older or partial checkpoint: sizes follow from the architecture


def read_gguf(folder: Folder, file: str, source: str) -> Checkpoint:
    """The model of a GGUF file, from its header and those of its other parts."""
    where = folder.where(file)
    first = gguf(folder.reader(file), where)
    header = GgufHeader(first.metadata, (*first.tensors, *_other_parts(folder, file, first)))
    title = file.rpartition("/")[2].removesuffix(".gguf")
    return Checkpoint(
        title=str(header.metadata.get("general.name") or title),
        form="gguf",
        config=gguf_config(header, where),
        tensors=header.tensors,
        source=source,
    )


def _other_parts(folder: Folder, file: str, first: GgufHeader) -> Iterator[CheckpointTensor]:
    """The tensors of a split model's other files, which llama.cpp loads with the first."""
    count = first.metadata.get("split.count") or 1
    if count == 1:
        return
    name = PART.fullmatch(file)
    if name is None or int(name[2]) != 1 or int(name[3]) != count:
        raise HubError(
            f"{folder.where(file)}: it is one of {count} parts; give the first, whose "
            f"name ends in -00001-of-{count:05}.gguf"
        )
    for part in range(2, count + 1):
        other = f"{name[1]}-{part:05}-of-{count:05}.gguf"
        yield from gguf(folder.reader(other), folder.where(other)).tensors


def _shards(folder: Folder) -> list[str]:
    """The files of a checkpoint: those in its index, or the only one."""
    try:
        index = folder.read_all(INDEX)
    except MissingFileError:
        return [ONE]
    files = json_object(index, INDEX).get("weight_map", {})
    if not isinstance(files, dict):
        raise HubError(f"{INDEX}: it has no 'weight_map'")
    names = sorted({str(file) for file in files.values()})
    for name in names:
        if SHARD.fullmatch(name) is None or leaves_folder(name):
            raise HubError(f"{INDEX}: {name!r} is not a file of its folder")
    return names


def _tensors(folder: Folder, files: Sequence[str]) -> tuple[CheckpointTensor, ...]:
    """The tensors of all files, AT_ONCE files in parallel; the first error ends the others."""

    def one(file: str) -> tuple[CheckpointTensor, ...]:
        return safetensors(folder.reader(file), file)

    if len(files) < 2:
        return tuple(tensor for file in files for tensor in one(file))
    from concurrent.futures import ThreadPoolExecutor

    threads = ThreadPoolExecutor(AT_ONCE)
    try:
        return tuple(tensor for tensors in threads.map(one, files) for tensor in tensors)
    except HubError:
        folder.end()
        threads.shutdown(cancel_futures=True)
        raise
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def json_object(data: bytes, where: str) -> dict[str, Any]:
    """The JSON object in `data`; a HubError for anything else."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        raise HubError(f"{where}: {_describe_content(data)}") from None
    if not isinstance(content, dict):
        raise HubError(f"{where}: not a JSON object")
    return content


def _describe_content(data: bytes) -> str:
    """What a file contains that is not JSON, in words."""
    if data.lstrip()[:1] == b"<":
        return "a web page and not JSON; a proxy or a login page answers, or the address is wrong"
    if data.startswith(POINTER):
        return "Git LFS's pointer to the file, and not the file; run git lfs pull"
    return "not valid JSON"
