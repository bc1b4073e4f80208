"""What this process may open because a run file names it: files of this machine, hosts of a hub.

The command line opens whatever its user names. A service says less, once, when it starts.
"""

from __future__ import annotations

import os

from msgspec import Struct

from ..ledger.units import MIB

HUB = "https://huggingface.co"


class Access(Struct, frozen=True, kw_only=True):
    """Which files and hosts a look-up may reach, and what it may take.

    Without `files` a name is never tried as a path, so no answer tells whether there is one.
    `hosts` are names such as `huggingface.co`; `.hf.co` stands for every host below it. With
    hosts given, even an empty set, only names like owner/model are looked up, and no address that
    is not public is reached, but for the one that HF_ENDPOINT names.
    """

    files: bool = True
    hosts: frozenset[str] | None = None  # None: any; empty: nothing is looked up
    seconds: float = 600.0  # for one model, all requests together
    size: int = 256 * MIB  # bytes of them

    @property
    def hub(self) -> bool:
        """Whether anything is looked up at all."""
        return self.hosts is None or bool(self.hosts)

    @property
    def addresses(self) -> bool:
        """Whether an address or a bucket that a name spells out is read: on a command line."""
        return self.files and self.hosts is None

    def reaches(self, host: str) -> bool:
        """Whether a host may be asked."""
        if self.hosts is None:
            return True
        host, known = host.lower(), {one.lower() for one in self.hosts}
        return host in known or any(one[:1] == "." and host.endswith(one) for one in known)


_now = Access()


def allow(access: Access) -> None:
    """Set what this process may open from here on."""
    global _now
    _now = access


def access() -> Access:
    """What this process may open."""
    return _now


def endpoint() -> str:
    """The hub's address, which an operator may set."""
    return (os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")
