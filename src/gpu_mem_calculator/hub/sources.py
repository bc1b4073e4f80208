"""A model by its name: on this machine, on the hub, in a bucket, behind an address.

Every look-up has an allowance of time and bytes. What was found is kept, and a failure is told
again for a minute, as long as nothing changes that the answer depends on.
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
from .checkpoint import CONFIG, Checkpoint, described, from_gguf, weighed
from .names import HubName, checked, climbs, hub_name
from .reader import Folder, LocalFolder, RemoteFolder

RETRY_SECONDS, MOST_FAILED = 60, 64  # how long a failure is told again, and how many are
MOST_KEPT = 16
ON_HUB, CACHED, BUCKET, ADDRESS = (
    "from the hub", "from the hub's cache on this machine", "from a bucket", "from an address",
)  # fmt: skip
VARIABLES = ("HF_", "HUGGING_FACE_", "TRANSFORMERS_", "AWS_", "XDG_CACHE")
NO_CONFIG = ("the repository has no config.json; give one of its GGUF files as "
             "owner/model/FILE.gguf, or the model that it was made from")  # fmt: skip
KINDS = "give a folder that has a config.json, or a .json or .gguf file"

Asked = tuple[str, bool, Access, tuple[tuple[str, str], ...]]
_kept: dict[Asked, Checkpoint] = {}
_failed: dict[Asked, tuple[float, str]] = {}


def forget() -> None:
    """Look everything up anew."""
    _kept.clear()
    _failed.clear()


def local(name: str, *, headers: bool = False) -> Checkpoint | None:
    """A folder with a config.json, a .safetensors file beside one, or a .gguf file."""
    if not access().files:
        return None
    path = Path(name)
    try:
        file, there = path.is_file(), (path / CONFIG).is_file()
    except (OSError, ValueError):
        return None
    if path.suffix == ".gguf" and file:
        return from_gguf(LocalFolder(path.parent), path.name, "from a file")
    if path.suffix == ".safetensors" and file:
        path = path.parent
        there = (path / CONFIG).is_file()
    if not there:
        return None
    found = described(LocalFolder(path), path.resolve().name, "from a folder")
    return weighed(found, LocalFolder(path)) if headers else found


def on_hub(name: str, *, headers: bool = False) -> Checkpoint:
    """A model on the hub, `owner/model[@revision]`; what its own cache has here comes first."""
    place = hub_name(name)
    if place is None:
        raise HubError(f"{name!r} is not a name on the hub; they are owner/model")
    if not access().hub:
        raise HubError("look-ups are off here")
    found = _cached(place, headers) if access().files else None
    if found is not None:
        return found
    told = environment.offline()
    if told:
        held = f", and {environment.cache()} has no config.json of it" if access().files else ""
        raise HubError(f"{told}={os.environ[told]} keeps off the hub{held}")
    model, revision = place.model, quote(place.revision, "")

    def folder(left: Allowance) -> Folder:
        return RemoteFolder(f"{endpoint()}/{model}/resolve/{revision}", left)

    def first(there: Folder) -> Checkpoint:
        if place.file:
            return from_gguf(there, place.file, ON_HUB)
        try:
            return described(there, model.partition("/")[2], ON_HUB)
        except MissingFileError:
            if access().hosts is not None:
                raise
            raise HubError(f"{there.where(CONFIG)}: {NO_CONFIG}") from None

    return _looked_up(place.spelled, headers, folder, first)


def _cached(place: HubName, headers: bool) -> Checkpoint | None:
    """What huggingface_hub has downloaded before: refs/<revision> names a snapshot's commit."""
    folder = environment.cache() / f"models--{place.model.replace('/', '--')}"
    try:
        ref = folder / "refs" / place.revision
        commit = ref.read_text(encoding="ascii").strip() if ref.is_file() else place.revision
        there = folder / "snapshots" / commit
        if climbs(commit) or not (there / (place.file or CONFIG)).is_file():
            return None
    except (OSError, ValueError):
        return None
    if place.file:
        return from_gguf(LocalFolder(there), place.file, CACHED)
    found = described(LocalFolder(there), place.model.partition("/")[2], CACHED)
    return weighed(found, LocalFolder(there)) if headers else found


def in_bucket(name: str, *, headers: bool = False) -> Checkpoint:
    """`s3://bucket/path`: a folder with a config.json, a .json or a .gguf file."""
    from .bucket import Bucket

    bucket, _, path = name[len("s3://") :].partition("/")
    path = path.strip("/")
    if (path and climbs(path)) or not name.isprintable():
        raise HubError("a bucket's path has no empty parts and no dots alone; write it out")

    def folder(left: Allowance) -> Folder:
        single = path.endswith((".json", ".gguf", ".safetensors"))
        return Bucket(bucket, path.rpartition("/")[0] if single else path, left)

    return _file_or_folder(name, path, folder, BUCKET, headers)


def at_address(name: str, *, headers: bool = False) -> Checkpoint:
    """`https://host/path/config.json`, or a .gguf file, with its query."""
    parts = urlsplit(checked(name))
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
    """The model that a path's ending says: in a file by itself, or in a folder."""
    above, _, file = path.rpartition("/")
    if file.endswith(".gguf"):
        return _looked_up(name, False, folder, lambda there: from_gguf(there, file, source))
    if file.endswith(".json"):
        title = file.removesuffix(".json")
        title = above.rpartition("/")[2] or title if file == CONFIG else title
        return _looked_up(name, False, folder, lambda there: described(there, title, source, file))
    title = (above if file.endswith(".safetensors") else path).rpartition("/")[2]
    title = title or name.strip("/").rpartition("/")[2]  # all of a bucket

    def first(there: Folder) -> Checkpoint:
        try:
            return described(there, title, source)
        except MissingFileError as error:
            raise HubError(f"{error}; {KINDS}") from None

    return _looked_up(name, headers, folder, first)


def _looked_up(
    name: str,
    headers: bool,
    folder: Callable[[Allowance], Folder],
    first: Callable[[Folder], Checkpoint],
) -> Checkpoint:
    """What is kept, or what is there; a failure is, for a minute."""
    told = tuple(sorted((k, v) for k, v in os.environ.items() if k.startswith(VARIABLES)))
    plain: Asked = (name, False, access(), told)
    asked: Asked = (name, headers, access(), told)
    until, why = _failed.get(asked, (0.0, ""))
    if monotonic() < until:
        raise HubError(why)
    if asked in _kept:
        return _kept[asked]
    there = folder(Allowance(access()))
    try:
        found = _kept.get(plain) or _keep(plain, first(there))
        if headers and found.form == "safetensors":
            found = weighed(found, there)
        return _keep(asked, found)
    except HubError as error:
        if len(_failed) >= MOST_FAILED:
            _failed.clear()
        _failed[asked] = monotonic() + RETRY_SECONDS, str(error)
        raise


def _keep(asked: Asked, found: Checkpoint) -> Checkpoint:
    """For the next time; the oldest goes where there are too many."""
    while len(_kept) >= MOST_KEPT:
        _kept.pop(next(iter(_kept)), None)
    _kept[asked] = found
    return found


def named(name: str, *, headers: bool = False) -> Checkpoint:
    """A model that is not on this machine, by whatever its name spells."""
    lower = name.lower()
    if lower.startswith("s3://"):
        return in_bucket(name, headers=headers)
    if lower.startswith(("http://", "https://")):
        return at_address(name, headers=headers)
    return on_hub(name, headers=headers)
