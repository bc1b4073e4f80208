"""`python -m maintenance.site FOLDER`: write the page as plain files into a folder."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import msgspec

from gpu_mem_calculator.web.app import REPORT, STYLES
from gpu_mem_calculator.web.facts import FACT
from gpu_mem_calculator.web.routes import openapi

from . import modules, packages, pages

HERE = Path(__file__).parent
COMPILER = HERE / "compile.mjs"
SCRIPTS = ("bridge.js", "calculator.js", "offline.js")
PROGRAM, MODULE = "pyodide.asm.wasm", "pyodide.asm.mjs"
NAME = "gpu-mem-calc"  # of the caches in a browser
MB = 1_000_000


def main(arguments: list[str] | None = None) -> int:
    """Build; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m maintenance.site", description=__doc__)
    parser.add_argument("folder", type=Path, help="is emptied first")
    default = Path(sys.prefix) / "pyodide"
    parser.add_argument("--packages", type=Path, default=default, help="where Pyodide is kept")
    documents = "the folder beside the page that the documents are in, if they are"
    parser.add_argument("--documents", default="", metavar="NAME", help=documents)
    options = parser.parse_args(arguments)
    try:
        print(build(options.folder, options.packages, options.documents))
    except packages.MissingError as reason:
        print(f"{reason}: the page without a server is not built")
        return 1
    return 0


def build(folder: Path, kept: Path, documents: str = "") -> str:
    """Write every file; returns what was written, in words."""
    kept.mkdir(parents=True, exist_ok=True)
    pyodide, wheel = packages.pyodide(kept), packages.msgspec(kept)
    files = {**_own_files(documents), **_python_files(pyodide, wheel, kept)}
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in (files | _scripts(files)).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return f"{folder}: {len(files) + len(SCRIPTS)} files, {_megabytes(files)} MB"


def _own_files(documents: str) -> dict[str, bytes]:
    """The pages, what they are made of, and the facts that they ask for."""
    texts = {name: text.encode() for name, text in pages.pages(documents).items()}
    styles = {address[1:]: (REPORT / name).read_bytes() for address, name in STYLES.items()}
    static = {name: path.read_bytes() for name, path in pages.static_files().items()}
    facts = {pages.file_name(at): msgspec.json.encode(make()) for at, (make, _, _) in FACT.items()}
    return {**texts, **static, **styles, **facts, "openapi.json": msgspec.json.encode(openapi())}


def _python_files(pyodide: bytes, wheel: bytes, kept: Path) -> dict[str, bytes]:
    """Pyodide, its standard library and the calculator, both compiled."""
    with tempfile.TemporaryDirectory() as place:
        with tarfile.open(fileobj=io.BytesIO(pyodide)) as archive:
            archive.extractall(place, filter="data")
        folder = Path(place) / "package"
        library = _library(
            folder, modules.library((folder / "python_stdlib.zip").read_bytes()), kept
        )
        calculator = _compiled(folder, modules.calculator(wheel))
        lock = json.loads((folder / "pyodide-lock.json").read_bytes()) | {"packages": {}}
        # .js: not every host knows that .mjs is JavaScript
        loader = (folder / "pyodide.mjs").read_text("utf-8").replace(MODULE, "pyodide.asm.js")
        return {
            "pyodide/pyodide.js": loader.encode(),
            "pyodide/pyodide.asm.js": (folder / MODULE).read_bytes(),
            f"pyodide/{PROGRAM}.gz": modules.gzipped((folder / PROGRAM).read_bytes()),
            "pyodide/pyodide-lock.json": json.dumps(lock).encode(),
            "pyodide/stdlib.zip": library,
            "calculator.tar.gz": modules.gzipped(modules.as_tar(calculator)),
        }


def _library(pyodide: Path, archive: bytes, kept: Path) -> bytes:
    """The standard library compiled, once for each Pyodide."""
    parts = hashlib.sha256(archive + COMPILER.read_bytes()).hexdigest()[:16]
    place = kept / f"library-{parts}.zip"
    if not place.exists():
        place.write_bytes(_compiled(pyodide, archive))
    return place.read_bytes()


def _compiled(pyodide: Path, archive: bytes) -> bytes:
    """A zip file with its modules compiled by Pyodide itself, under node."""
    source, target = pyodide / "from.zip", pyodide / "to.zip"
    source.write_bytes(archive)
    line = ["node", *map(str, (COMPILER, pyodide, source, target))]
    if shutil.which(line[0]) is None:
        raise packages.MissingError("there is no node to compile modules with")
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
    return target.read_bytes()


def _scripts(files: dict[str, bytes]) -> dict[str, bytes]:
    """The scripts, which know the other files and their hash."""
    texts = {name: (HERE / name).read_text("utf-8") for name in SCRIPTS}
    whole = hashlib.sha256()
    for name, content in sorted(files.items()):
        whole.update(name.encode() + hashlib.sha256(content).digest())
    whole.update("".join(texts.values()).encode())
    names = ["./", *(name for name in (*files, *SCRIPTS[:2]) if name != "index.html")]
    words = {
        '"@version@"': json.dumps(f"{NAME} {whole.hexdigest()[:16]}"),
        "@files@": json.dumps(names),
        "@facts@": json.dumps([*FACT]),
        "@megabytes@": _megabytes(files),
    }
    for name, text in texts.items():
        for word, value in words.items():
            text = text.replace(word, value)
        texts[name] = text
    return {name: text.encode() for name, text in texts.items()}


def _megabytes(files: dict[str, bytes]) -> str:
    return f"{sum(map(len, files.values())) / MB:.1f}"


if __name__ == "__main__":
    raise SystemExit(main())
