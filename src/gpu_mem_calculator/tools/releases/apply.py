"""Puts the user's releases into a run: the version of its program, or of its server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .release import PACKAGES, Release, Releases, package_name

# Servers by the names of run files, where the package's name is another. transformers is none: one
# release of it is modelled as a server.
SERVERS = {"llamacpp": "llama-cpp", "transformers": ""}


def with_releases(run: Mapping[str, Any], releases: Releases) -> tuple[dict[str, Any], list[str]]:
    """A run file with the releases of its tool, where it names none itself; and for each release
    that was put in, where it was read.
    """
    found = dict(run)
    for section, key, release in (
        ("inference", "engine_version", _of_server(run, releases)),
        ("program", "version", _of_program(run, releases)),
    ):
        part = run.get(section) or {}
        if release is not None and part.get(key) is None:
            found[section] = {**part, key: release.version}
            return found, [f"{release.package} {release.version} ({release.read_from})"]
    return found, []


def _of_server(run: Mapping[str, Any], releases: Releases) -> Release | None:
    engine = str((run.get("inference") or {}).get("engine") or "").lower()
    name = SERVERS.get(engine, PACKAGES.get(package_name(engine), ""))
    return releases.get(name)


def _of_program(run: Mapping[str, Any], releases: Releases) -> Release | None:
    from ..translation.tools import TOOLS

    tool = TOOLS.get(str((run.get("program") or {}).get("tool")))
    return releases.get(PACKAGES.get(package_name(tool.package), "")) if tool else None
