"""What a run file may make this process open: files of this machine, hosts of a hub.

The command line opens everything that its user names. A service sets limits when it starts.
"""

from __future__ import annotations

import os

from msgspec import Struct

from ...ledger.units import MIB

HUB = "https://huggingface.co"
OUTSIDE = "lies outside the folder that is read, and is not opened"


class Access(Struct, frozen=True, kw_only=True):
    """Which files and hosts a look-up may reach, and its limits.

    - `files`: whether a name may be a path; without it no answer shows whether a path exists
    - `root`: the folder that those paths lie in, links followed; None: any folder
    - `hosts`: hosts that may be asked, such as `huggingface.co`; `.hf.co` means every host below
      it; None: any host; empty: nothing is looked up. With a set, only names like owner/model are
      looked up, and only public addresses are connected to, except that of HF_ENDPOINT
    - `seconds`, `size`: seconds and bytes of all requests for one model together
    """

    files: bool = True
    root: str | None = None
    hosts: frozenset[str] | None = None
    seconds: float = 600.0
    size: int = 256 * MIB

    @property
    def hub(self) -> bool:
        """Whether anything is looked up at all."""
        return self.hosts is None or bool(self.hosts)

    @property
    def addresses(self) -> bool:
        """Whether a name may be an address or a bucket: on the command line only."""
        return self.files and self.hosts is None and self.root is None

    def opens(self, path: str | os.PathLike[str]) -> bool:
        """Whether a name may be this path."""
        if self.root is None or not self.files:
            return self.files
        root = os.path.join(os.path.realpath(self.root), "")
        try:
            return os.path.join(os.path.realpath(path), "").startswith(root)
        except (OSError, ValueError):
            return False

    def reaches(self, host: str) -> bool:
        """Whether a host may be asked."""
        if self.hosts is None:
            return True
        host, known = host.lower(), {one.lower() for one in self.hosts}
        return host in known or any(one[:1] == "." and host.endswith(one) for one in known)


_current = Access()


def allow(access: Access) -> None:
    """Set what this process may open from now on."""
    global _current
    _current = access


def access() -> Access:
    """What this process may open."""
    return _current


def endpoint() -> str:
    """The hub's address: HF_ENDPOINT, else huggingface.co."""
    return (os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")
