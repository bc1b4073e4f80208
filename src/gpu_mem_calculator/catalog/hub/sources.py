"""A model by its name: on this machine, on the hub, in a bucket, at an address.

Every look-up has an allowance of time and bytes. Its result is cached, and an error for a minute,
as long as the access and the environment variables that it depends on stay the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from urllib.parse import quote, urlsplit

from . import environment
from .access import Access, access, endpoint
from .bounds import Allowance, HubError, MissingFileError
from .checkpoint import CONFIG, Checkpoint, read_config, read_gguf, with_tensors
from .names import HubName, check_address, hub_name, leaves_folder
from .reader import Folder, LocalFolder, RemoteFolder

RETRY_SECONDS, MOST_FAILED = 60, 64  # how long an error is cached, and how many are
MOST_CACHED = 16
ON_HUB, CACHED, BUCKET, ADDRESS = (
    "from the hub",
    "from the hub's cache on this machine",
    "from a bucket",
    "from an address",
)
VARIABLES = ("HF_", "HUGGING_FACE_", "TRANSFORMERS_", "AWS_", "XDG_CACHE")
NO_CONFIG = (
    "the repository has no config.json; give one of its GGUF files as "
    "owner/model/FILE.gguf, or the model that it was converted from"
)
KINDS = "give a folder that has a config.json, or a .json or .gguf file"

# Name, whether headers are read, access, and the environment variables.
LookUp = tuple[str, bool, Access, tuple[tuple[str, str], ...]]
_cache: dict[LookUp, Checkpoint] = {}
_failures: dict[LookUp, tuple[float, str]] = {}


def forget() -> None:
    """Clear the cache of results and errors."""
    _cache.clear()
    _failures.clear()


def local(name: str, *, headers: bool = False) -> Checkpoint | None:
    """The model of a folder with a config.json, of a .safetensors file in one, or of a .gguf file.

    None where there is no such file. `headers`: read the tensors too.
    """
    if not access().opens(name):
        return None
    path = Path(name)
    try:
        is_file, has_config = path.is_file(), (path / CONFIG).is_file()
    except (OSError, ValueError):
        return None
    if path.suffix == ".gguf" and is_file:
        return read_gguf(LocalFolder(path.parent), path.name, "from a file")
    if path.suffix == ".safetensors" and is_file:
        path = path.parent
        has_config = (path / CONFIG).is_file()
    if not has_config or not access().opens(path / CONFIG):
        return None
    folder = LocalFolder(path)
    checkpoint = read_config(folder, path.resolve().name, "from a folder")
    return with_tensors(checkpoint, folder) if headers else checkpoint


def hub_checkpoint(name: str, *, headers: bool = False) -> Checkpoint:
    """A model on the hub, `owner/model[@revision]`; huggingface_hub's cache is tried first."""
    place = hub_name(name)
    if place is None:
        raise HubError(f"{name!r} is not a name on the hub; they are owner/model")
    if not access().hub:
        raise HubError("look-ups are off here")
    checkpoint = _from_hub_cache(place, headers) if access().files else None
    if checkpoint is not None:
        return checkpoint
    variable = environment.offline()
    if variable:
        cache = ", and its cache has no config.json of it" if access().files else ""
        raise HubError(f"{variable}={os.environ[variable]} keeps off the hub{cache}")
    model, revision = place.model, quote(place.revision, "")

    def folder(left: Allowance) -> Folder:
        return RemoteFolder(f"{endpoint()}/{model}/resolve/{revision}", left)

    def first(remote: Folder) -> Checkpoint:
        if place.file:
            return read_gguf(remote, place.file, ON_HUB)
        try:
            return read_config(remote, model.partition("/")[2], ON_HUB)
        except MissingFileError:
            if access().hosts is not None:
                raise
            raise HubError(f"{remote.where(CONFIG)}: {NO_CONFIG}") from None

    return _look_up(place.spelled, headers, folder, first)


def _from_hub_cache(place: HubName, headers: bool) -> Checkpoint | None:
    """A model that huggingface_hub has downloaded: refs/<revision> names its snapshot's commit."""
    folder = environment.cache() / f"models--{place.model.replace('/', '--')}"
    try:
        ref = folder / "refs" / place.revision
        commit = ref.read_text(encoding="ascii").strip() if ref.is_file() else place.revision
        snapshot = folder / "snapshots" / commit
        if leaves_folder(commit) or not (snapshot / (place.file or CONFIG)).is_file():
            return None
    except (OSError, ValueError):
        return None
    if place.file:
        return read_gguf(LocalFolder(snapshot), place.file, CACHED)
    checkpoint = read_config(LocalFolder(snapshot), place.model.partition("/")[2], CACHED)
    return with_tensors(checkpoint, LocalFolder(snapshot)) if headers else checkpoint


def bucket_checkpoint(name: str, *, headers: bool = False) -> Checkpoint:
    """`s3://bucket/path`: a folder with a config.json, a .json or a .gguf file."""
    from .bucket import Bucket

    bucket, _, path = name[len("s3://") :].partition("/")
    path = path.strip("/")
    if (path and leaves_folder(path)) or not name.isprintable():
        raise HubError("a bucket's path has no empty parts and no dots alone; write it out")

    def folder(left: Allowance) -> Folder:
        single = path.endswith((".json", ".gguf", ".safetensors"))
        return Bucket(bucket, path.rpartition("/")[0] if single else path, left)

    return _file_or_folder(name, path, folder, BUCKET, headers)


def address_checkpoint(name: str, *, headers: bool = False) -> Checkpoint:
    """`https://host/path/config.json`, or a .gguf file; the query is part of the requests."""
    parts = urlsplit(check_address(name))
    path = parts.path.rpartition("/")
    if not path[2].endswith((".json", ".gguf")):
        raise HubError("an address ends in .json or .gguf; give that of the model's config.json")
    query = f"?{parts.query}" if parts.query else ""

    def folder(left: Allowance) -> Folder:
        return RemoteFolder(f"{parts.scheme}://{parts.netloc}{path[0]}", left, query)

    return _file_or_folder(name, parts.path, folder, ADDRESS, headers)


def _file_or_folder(
    name: str, path: str, folder: Callable[[Allowance], Folder], source: str, headers: bool
) -> Checkpoint:
    """The model of a path: its ending tells a single file from a folder."""
    above, _, file = path.rpartition("/")
    if file.endswith(".gguf"):
        return _look_up(name, False, folder, lambda remote: read_gguf(remote, file, source))
    if file.endswith(".json"):
        title = file.removesuffix(".json")
        title = above.rpartition("/")[2] or title if file == CONFIG else title
        return _look_up(
            name, False, folder, lambda remote: read_config(remote, title, source, file)
        )
    title = (above if file.endswith(".safetensors") else path).rpartition("/")[2]
    title = title or name.strip("/").rpartition("/")[2]  # all of a bucket

    def first(remote: Folder) -> Checkpoint:
        try:
            return read_config(remote, title, source)
        except MissingFileError as error:
            raise HubError(f"{error}; {KINDS}") from None

    return _look_up(name, headers, folder, first)


def _look_up(
    name: str,
    headers: bool,
    folder: Callable[[Allowance], Folder],
    first: Callable[[Folder], Checkpoint],
) -> Checkpoint:
    """The cached result of a look-up, or a new one; `first` reads it without tensors."""
    variables = tuple(sorted((k, v) for k, v in os.environ.items() if k.startswith(VARIABLES)))
    config_only: LookUp = (name, False, access(), variables)
    look_up: LookUp = (name, headers, access(), variables)
    until, why = _failures.get(look_up, (0.0, ""))
    if monotonic() < until:
        raise HubError(why)
    if look_up in _cache:
        return _cache[look_up]
    remote = folder(Allowance(access()))
    try:
        checkpoint = _cache.get(config_only) or _remember(config_only, first(remote))
        if headers and checkpoint.form == "safetensors":
            checkpoint = with_tensors(checkpoint, remote)
        return _remember(look_up, checkpoint)
    except HubError as error:
        if len(_failures) >= MOST_FAILED:
            _failures.clear()
        _failures[look_up] = monotonic() + RETRY_SECONDS, str(error)
        raise


def _remember(look_up: LookUp, checkpoint: Checkpoint) -> Checkpoint:
    """Cache a result; the oldest is dropped where there are MOST_CACHED."""
    while len(_cache) >= MOST_CACHED:
        _cache.pop(next(iter(_cache)), None)
    _cache[look_up] = checkpoint
    return checkpoint


def named(name: str, *, headers: bool = False) -> Checkpoint:
    """A model that is not on this machine: in a bucket, at an address or on the hub."""
    lower = name.lower()
    if lower.startswith("s3://"):
        return bucket_checkpoint(name, headers=headers)
    if lower.startswith(("http://", "https://")):
        return address_checkpoint(name, headers=headers)
    return hub_checkpoint(name, headers=headers)
