"""A model's config and the tensors of its checkpoint: in a folder, in a file, or on the hub."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from time import monotonic
from typing import Any

from msgspec import Struct

from .access import Access, access, endpoint
from .bounds import AbsentError, Allowance, HubError, said
from .gguf_config import gguf_config
from .headers import Stored, gguf, safetensors
from .reader import Read, address_reader, file_reader, whole

INDEX, ONE = "model.safetensors.index.json", "model.safetensors"
HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*(/[\w./-]+\.gguf)?", re.ASCII)
SHARD = re.compile(r"[^\x00-\x1f\x7f\\?#%:]+")
RETRY_SECONDS, MOST_FAILED = 60, 64  # how long a failure is told again, and how many are


class Checkpoint(Struct, frozen=True, kw_only=True):
    """What was found. `tensors` is empty where there is a config only."""

    title: str
    config: dict[str, Any]
    tensors: tuple[Stored, ...] = ()
    form: str = ""  # safetensors or gguf


def local(name: str) -> Checkpoint | None:
    """A folder with a config.json, a .safetensors file beside one, or a .gguf file."""
    if not access().files:
        return None
    path = Path(name)
    try:
        file, described = path.is_file(), (path / "config.json").is_file()
    except (OSError, ValueError):
        return None
    if path.suffix == ".gguf" and file:
        return _gguf(path.stem, file_reader(path), str(path))
    if path.suffix == ".safetensors" and file:
        path = path.parent
        described = (path / "config.json").is_file()
    if not described:
        return None
    config = _json((path / "config.json").read_bytes(), str(path / "config.json"))
    shards = _shards(lambda file: (path / file).read_bytes() if (path / file).is_file() else None,
                     (path / ONE).is_file())  # fmt: skip
    there = [file for file in shards if (path / file).is_file()]
    tensors = _tensors((file, file_reader(path / file)) for file in there)
    complete = len(there) == len(shards)
    return Checkpoint(title=path.resolve().name, config=config,
                      tensors=tensors if complete else (), form="safetensors")  # fmt: skip


def is_hub_name(name: str) -> bool:
    """Whether a name could be a model's on the hub: `owner/model`, or a GGUF file in one.

    Where hosts are given, it is the first.
    """
    fits = HUB_NAME.fullmatch(name) is not None and not _climbs(name)
    return fits and (name.count("/") == 1 or access().hosts is None)


def _climbs(path: str) -> bool:
    """Whether a path may lead out of its folder."""
    return any(part in ("", ".", "..") for part in path.split("/"))


_failed: dict[tuple[str, str, Access], tuple[float, str]] = {}


def on_hub(name: str) -> Checkpoint:
    """A model on the hub. What was found is kept; a failure is, for a minute."""
    if not access().hub:
        raise HubError("look-ups are off here")
    if os.environ.get("HF_HUB_OFFLINE") == "1":
        raise HubError(f"{name!r} is not a preset, and HF_HUB_OFFLINE=1 keeps off the hub")
    asked = name, endpoint(), access()
    until, why = _failed.get(asked, (0.0, ""))
    if monotonic() < until:
        raise HubError(why)
    try:
        return _looked_up(*asked)
    except HubError as error:
        if len(_failed) >= MOST_FAILED:
            _failed.clear()
        _failed[asked] = monotonic() + RETRY_SECONDS, str(error)
        raise


@lru_cache(maxsize=16)
def _looked_up(name: str, base: str, allowed: Access) -> Checkpoint:
    """Its config, and the headers of its files by range."""
    left = Allowance(allowed)
    owner, model, *rest = name.split("/", 2)
    folder = f"{base}/{owner}/{model}/resolve/main"
    if rest:
        address = f"{folder}/{rest[0]}"
        title = rest[0].rpartition("/")[2].removesuffix(".gguf")
        return _gguf(title, address_reader(address, left), said(address))
    config = _json(whole(f"{folder}/config.json", left), said(f"{folder}/config.json"))

    def index(file: str) -> bytes | None:
        try:
            return whole(f"{folder}/{file}", left)
        except AbsentError:
            return None

    shards = _shards(index, True)
    try:
        tensors = _tensors((file, address_reader(f"{folder}/{file}", left)) for file in shards)
    except AbsentError:
        tensors = ()  # an older checkpoint: the architecture says how large it is
    return Checkpoint(title=model, config=config, tensors=tensors, form="safetensors")


def _gguf(title: str, read: Read, where: str) -> Checkpoint:
    file = gguf(read, where)
    return Checkpoint(title=str(file.metadata.get("general.name") or title), form="gguf",
                      config=gguf_config(file, where), tensors=file.tensors)  # fmt: skip


def _shards(index: Callable[[str], bytes | None], one: bool) -> list[str]:
    """The files of a checkpoint: those that its index names, or the only one."""
    found = index(INDEX)
    if found is None:
        return [ONE] if one else []
    files = _json(found, INDEX).get("weight_map", {})
    if not isinstance(files, dict):
        raise HubError(f"{INDEX}: it has no 'weight_map'")
    names = sorted({str(file) for file in files.values()})
    for name in names:
        if SHARD.fullmatch(name) is None or _climbs(name):
            raise HubError(f"{INDEX}: {name!r} is not a file of its folder")
    return names


def _tensors(files: Iterable[tuple[str, Read]]) -> tuple[Stored, ...]:
    return tuple(one for file, read in files for one in safetensors(read, file))


def _json(data: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise HubError(f"{where}: not valid JSON") from None
    if not isinstance(found, dict):
        raise HubError(f"{where}: not a JSON object")
    return found
