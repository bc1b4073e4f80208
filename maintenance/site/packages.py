"""Fetches Pyodide and the wheel of msgspec for it, by their hashes, into a folder.

    python -m maintenance.site.packages .venv/pyodide

Where they cannot be had, one sentence says why, and the tests of the built page are skipped.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

# Pyodide of Python 3.14, and the hash that npm publishes of the package.
PYODIDE = "pyodide@314.0.7"
SHA512 = "0YvXxEhfEdpLfb/XkM2BFAeMROq0iMUX2bzzH9pOttyMcWkwq+HbE5uyuGD82LN7y2q+SNvi/6V5JEsOlD2R1A=="
# msgspec for that Python, and the hash that the package index publishes.
MSGSPEC = "msgspec==0.22.0"
SHA256 = "a66b1766311e42371e509c996c3933b161c7ae0eabdf361af5316dec197e1022"
PLATFORM, PYTHON = "pyemscripten_2026_0_wasm32", "3.14"
SECONDS = 300


class MissingError(Exception):
    """Why a package is not there, as a sentence."""


def pyodide(folder: Path) -> bytes:
    """Pyodide's package, fetched if the folder has none."""
    if not list(folder.glob("pyodide-*.tgz")):
        if shutil.which("npm") is None:
            raise MissingError(f"there is no npm to fetch {PYODIDE} with")
        _run(PYODIDE, ["npm", "pack", "--silent", "--pack-destination", str(folder), PYODIDE])
    held = _only(folder, "pyodide-*.tgz").read_bytes()
    if base64.b64encode(hashlib.sha512(held).digest()).decode() != SHA512:
        raise MissingError(f"{PYODIDE} is not the package that is pinned here: its hash differs")
    return held


def msgspec(folder: Path) -> bytes:
    """The wheel of msgspec, fetched if the folder has none."""
    if not list(folder.glob("msgspec-*.whl")):
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            str(folder),
        ]
        target = ["--only-binary", ":all:", "--python-version", PYTHON, "--platform", PLATFORM]
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as wanted:
            wanted.write(f"{MSGSPEC} --hash=sha256:{SHA256}\n")
            wanted.flush()
            _run(MSGSPEC, [*pip, *target, "--require-hashes", "--requirement", wanted.name])
    held = _only(folder, "msgspec-*.whl").read_bytes()
    if hashlib.sha256(held).hexdigest() != SHA256:
        raise MissingError(f"{MSGSPEC} is not the wheel that is pinned here: its hash differs")
    return held


def _run(package: str, command: Sequence[str]) -> None:
    try:
        ended = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise MissingError(f"{package} was not fetched in {SECONDS} seconds") from None
    if ended.returncode:
        raise MissingError(f"{package} cannot be fetched by {command[0]}")


def _only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise MissingError(f"{folder} has {len(found)} files of {pattern}, and must have one")
    return found[0]


def main(folder: Path) -> str:
    """What to say: where the packages are, or why they are not."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        pyodide(folder), msgspec(folder)
    except MissingError as reason:
        return f"{reason}: the page without a server is not built"
    return f"Pyodide and msgspec for it are in {folder}"


if __name__ == "__main__":
    print(main(Path(sys.argv[1])))
