"""A model's config, and the tensors of its checkpoint, from a folder of any kind."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from .bounds import HubError, MissingFileError
from .gguf_config import gguf_config
from .headers import CheckpointTensor, GgufHeader, gguf, safetensors
from .names import leaves_folder
from .reader import Folder

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
