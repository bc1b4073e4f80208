"""What Python has in the browser: its standard library, this package and what that needs."""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import grimp
import yaml

import gpu_mem_calculator
from gpu_mem_calculator.catalog.kept import keep_tables

PACKAGE = Path(gpu_mem_calculator.__path__[0])
ENTRY = "gpu_mem_calculator.web.in_browser"
# Of these rooms, only what the entry imports; of the others everything, as names choose modules.
PARTLY = ("cli", "lab", "web", "core")
# Parts of the standard library that a page has no use for: servers, mail, tools of developers.
LEFT_OUT = frozenset(
    [
        "_pyrepl",
        "doctest",
        "ensurepip",
        "ftplib",
        "idlelib",
        "imaplib",
        "lib2to3",
        "mailbox",
        "multiprocessing",
        "nntplib",
        "pdb",
        "poplib",
        "profile",
        "pydoc",
        "pydoc_data",
        "smtplib",
        "sqlite3",
        "telnetlib",
        "tkinter",
        "turtle",
        "unittest",
        "venv",
        "wsgiref",
        "xmlrpc",
        "xml",
        "curses",
        "dbm",
        "turtledemo",
        "cProfile",
        "pstats",
        "trace",
        "tabnanny",
        "zipapp",
        "webbrowser",
    ]
)
_ENCODINGS = (
    "__init__ aliases ascii cp437 cp1252 hex_codec base64_codec idna latin_1 punycode undefined "
    "raw_unicode_escape unicode_escape utf_8 utf_8_sig utf_16 utf_16_be utf_16_le utf_32"
)
ENCODINGS = frozenset(_ENCODINGS.split())


def library(archive: bytes) -> bytes:
    """Pyodide's standard library, without what a page has no use for."""
    with zipfile.ZipFile(io.BytesIO(archive)) as old:
        return _zipped((name, old.read(name)) for name in old.namelist() if _is_used(name))


def _is_used(name: str) -> bool:
    first, _, rest = name.partition("/")
    if first == "encodings":
        return rest.removesuffix(".py") in ENCODINGS
    return first.removesuffix(".py") not in LEFT_OUT


def calculator(wheel: bytes) -> bytes:
    """This package, msgspec and PyYAML, as a zip file."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as packed:
        msgspec = [(one, packed.read(one)) for one in packed.namelist() if _is_module(one)]
    folder = Path(yaml.__path__[0])
    pure = [(f"yaml/{path.name}", path.read_bytes()) for path in folder.glob("*.py")]
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / PACKAGE.name
        unused = shutil.ignore_patterns("__pycache__", "*.so", "static")
        shutil.copytree(PACKAGE, copy, ignore=unused)
        keep_tables(str(copy))
        imported = grimp.build_graph(PACKAGE.name, cache_dir=None)
        needed = imported.find_upstream_modules(ENTRY) | {ENTRY}
        own = [
            (path.relative_to(place), path) for path in sorted(copy.rglob("*")) if path.is_file()
        ]
        files = [
            (name.as_posix(), path.read_bytes()) for name, path in own if _is_needed(name, needed)
        ]
    return _zipped([*files, *msgspec, *pure])


def _is_module(name: str) -> bool:
    return name.startswith("msgspec/") and name.endswith((".py", ".so"))


def _is_needed(name: Path, needed: set[str]) -> bool:
    room = name.parts[1]
    if name.name.endswith(".lock.json.marshal"):
        return False  # few are read, and each is as large as its text
    if room not in PARTLY or name.suffix != ".py" or name.name == "__init__.py":
        return room != "cli"
    return ".".join(name.with_suffix("").parts) in needed


def _zipped(files: Iterable[tuple[str, bytes]]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as new:
        for name, content in files:
            new.writestr(zipfile.ZipInfo(name), content)
    return packed.getvalue()


def as_tar(archive: bytes) -> bytes:
    """The files of a zip file as a tar file, which compresses better as a whole."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as new:
        for name, content in _files(archive):
            about = tarfile.TarInfo(name)
            about.size = len(content)
            new.addfile(about, io.BytesIO(content))
    return packed.getvalue()


def _files(archive: bytes) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(archive)) as packed:
        yield from ((name, packed.read(name)) for name in packed.namelist())


def gzipped(content: bytes) -> bytes:
    """The same bytes for the same content."""
    return gzip.compress(content, 9, mtime=0)
