"""The newest release of a package that pip can get, and its wheel; nothing is installed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

# Which wheels pip is asked for: those of this machine, then those of the newest Python of the
# project's images, on either architecture.
TARGETS: tuple[tuple[str, ...], ...] = (
    (),
    (
        "--python-version=3.13",
        "--platform=manylinux_2_28_x86_64",
        "--platform=manylinux_2_28_aarch64",
        "--only-binary=:all:",
    ),
)


class ReleaseError(Exception):
    """No release or no wheel can be had; the text is a sentence for the report."""


class Release(NamedTuple):
    """The newest version, whether it is newer than the one that was read, and pip's target."""

    version: str
    newer: bool
    target: tuple[str, ...]


def newest(package: str, read: str) -> Release:
    """The newest release of a package, of the first target that has the version that was read."""
    releases = []
    for target in TARGETS:
        versions = _versions(package, target)
        if read in versions:
            return Release(versions[0], versions.index(read) > 0, target)
        releases += [Release(version, False, target) for version in versions[:1]]
    if not releases:
        raise ReleaseError("no release can be listed; is the package index reachable?")
    raise ReleaseError(
        f"{read} is not among the releases that can be installed here (newest: "
        f"{releases[-1].version}); nothing is compared"
    )


def wheel(package: str, version: str, target: Sequence[str], folder: Path) -> Path:
    """The wheel of a release, downloaded into a folder."""
    before = set(folder.iterdir())
    options = ("--quiet", "--no-deps", "--only-binary=:all:", f"--dest={folder}")
    _pip("download", *options, *target, f"{package}=={version}")
    wheels = [path for path in folder.iterdir() if path not in before and path.suffix == ".whl"]
    if not wheels:
        raise ReleaseError(f"{version} has no wheel that can be downloaded, so nothing is compared")
    return wheels[0]


def installed(package: str, version: str) -> Path | None:
    """The folder in which a version of a package is installed; None if it is not."""
    try:
        package_here = distribution(package)
    except PackageNotFoundError:
        return None
    same = package_here.version.partition("+")[0] == version
    return Path(str(package_here.locate_file(""))) if same else None


def _versions(package: str, target: Sequence[str]) -> list[str]:
    """The versions that pip can install, the newest first; none where it has no answer."""
    lines = _pip("index", "versions", package, *target).splitlines()
    _, _, listed = next((line for line in lines if "versions:" in line), "").partition(":")
    return [version.strip() for version in listed.split(",") if version.strip()]


def _pip(*arguments: str) -> str:
    """What pip prints; it does not try again where the index does not answer."""
    command = (sys.executable, "-m", "pip", *arguments, "--retries=0", "--timeout=30")
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
