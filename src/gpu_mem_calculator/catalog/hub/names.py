"""What a model's name can be: a model on the hub, one of its pages, an address, a bucket."""

from __future__ import annotations

import re

from msgspec import Struct

from .access import HUB, access, endpoint
from .bounds import NO_LOGIN, HubError, printable_address

HUB_NAME = r"(\w[\w.-]*/\w[\w.-]*)(?:/([\w./-]+\.gguf))?"
REVISION = r"\w[\w.+/-]{0,254}"
PLAIN = r"[^\x00-\x20\x7f\\]+"  # characters of an address
SCHEMES = ("s3://", "http://", "https://")
PAGES = ("tree", "blob", "resolve", "raw")
OTHER_KINDS = ("datasets", "spaces", "api", "docs", "papers", "collections")
MAIN = "main"


class HubName(Struct, frozen=True):
    """A model on the hub, or a file in one, at a branch, a tag or a commit."""

    model: str
    file: str = ""
    revision: str = MAIN

    @property
    def spelled(self) -> str:
        """The name as a user types it."""
        name = f"{self.model}/{self.file}" if self.file else self.model
        return name if self.revision == MAIN else f"{name}@{self.revision}"


def leaves_folder(path: str) -> bool:
    """Whether a path has parts that may lead out of its folder."""
    return any(part in ("", ".", "..") for part in path.split("/"))


def is_revision(text: str) -> bool:
    """Whether a text can be a branch, a tag or a commit."""
    return re.fullmatch(REVISION, text, re.ASCII) is not None and not leaves_folder(text)


def hub_name(name: str) -> HubName | None:
    """`owner/model` or `owner/model/FILE.gguf`, optionally followed by `@revision`; else None.

    Where hosts are limited, a file is not accepted.
    """
    path, sign, revision = name.partition("@")
    match = re.fullmatch(HUB_NAME, path, re.ASCII)
    if match is None or leaves_folder(path) or (sign and not is_revision(revision)):
        return None
    if match[2] and access().hosts is not None:
        return None
    return HubName(match[1], match[2] or "", revision or MAIN)


def is_address(name: str) -> bool:
    """Whether a name is an address or a bucket, and those may be read."""
    return access().addresses and name.lower().startswith(SCHEMES)


def printable_name(name: str) -> str:
    """A name for messages and titles: an address is written without its secrets."""
    return printable_address(name) if name.lower().startswith(SCHEMES) else name


def check_address(address: str) -> str:
    """The address itself; a HubError where no request can be made to it."""
    from urllib.parse import urlsplit

    if re.fullmatch(PLAIN, address) is None:
        raise HubError("an address has no spaces or backslashes; write a space as %20")
    try:
        parts = urlsplit(address)
        parts.port  # noqa: B018 (raises where it is no number)
    except ValueError:
        raise HubError("it is not an address; check its host and port") from None
    if "@" in parts.netloc:
        raise HubError(NO_LOGIN)
    if not parts.hostname:
        raise HubError("it is not an address; it has no host")
    return address


def page(address: str) -> str | None:
    """The hub name of one of the hub's own pages: of its model, or of a file in it.

    None where the address is not a page of the hub.
    """
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(check_address(address))
    hub = f"{parts.scheme.lower()}://{parts.netloc.lower()}"
    if hub not in (HUB, "https://hf.co", "https://www.huggingface.co", endpoint().lower()):
        return None
    words = [unquote(word) for word in parts.path.strip("/").split("/")]
    if len(words) < 2 or words[0] in OTHER_KINDS:
        return None
    model, kind, rest = "/".join(words[:2]), words[2:3], words[3:]
    if kind and (kind[0] not in PAGES or not rest):
        return None
    revision, file = rest[0] if rest else MAIN, "/".join(rest[1:])
    if file and file != "config.json" and not file.endswith(".gguf"):
        raise HubError(
            "of the hub's files config.json and GGUF files are read; give one of them, "
            "or owner/model"
        )
    name = HubName(model, "" if file == "config.json" else file, revision).spelled
    if hub_name(name) is None:
        raise HubError("it is not a model's page; give its name as owner/model")
    return name
