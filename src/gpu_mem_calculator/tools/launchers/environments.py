"""What is installed where a command would run: read from the names of the folders that pip and
conda leave beside the packages. Nothing is started, nothing is imported.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from ...ledger.quoting import quoted
from ...run.releases import package_name
from ...runfile.text.errors import InputError
from ..releases.release import PACKAGES, FoundReleases, Release, release_of
from .launch import MPIRUN
from .wrappers import VARIABLE, WRAPPERS

# Folders of packages below a prefix, the user's own first (CPython's and Debian's site.py).
PACKAGE_FOLDERS = (
    *("lib/python3*/site-packages", "lib64/python3*/site-packages", "Lib/site-packages"),
    *("local/lib/python3*/dist-packages", "lib/python3/dist-packages"),
)
METADATA = re.compile(r"(.+?)-([^-]+?)(?:-py3[\d.]*)?\.(?:dist|egg)-info")
PACKAGE = re.compile(r"([A-Za-z0-9]\w*)(?:-?\.(?:dist|egg)-info)?")  # without a release
CONDA_METADATA = re.compile(r"(.+)-([^-]+)-[^-]+\.json")
CONDA = ("conda", "mamba", "micromamba")
CONDA_ROOTS = ("miniconda3", "miniforge3", "mambaforge", "anaconda3", "micromamba", ".conda")
# Wrappers that run a command in an environment beside the project's files.
BESIDE = {"uv": ".venv", "poetry": ".venv", "pixi": ".pixi/envs/default"}
SHIMS = "shims"  # pyenv's folder of programs
STARTERS = ("srun", *MPIRUN)  # they start a program of this environment
INTERPRETER = re.compile(r"""(?:#!|'''exec' )\s*"?([^"\s]+)""")
FIRST_BYTES = 512  # of a program, in which its interpreter stands


def installed(
    words: Sequence[str], folder: Path, variables: Mapping[str, str] = os.environ
) -> FoundReleases:
    """The releases in the environment in which a command would run, started in a folder."""
    try:
        prefix = _prefix(words, folder, variables)
        if prefix is None:
            return FoundReleases()
        names, records = _names(prefix)
    except InputError as error:
        return FoundReleases(notes=tuple(error.problems))
    except OSError as error:
        return FoundReleases(notes=(f"{error.filename} cannot be read: {error.strerror}",))
    if not names and not records:
        return FoundReleases(notes=(f"{prefix} has no packages",))
    found = list(_releases(names, records, f"{prefix}"))
    versions: dict[str, set[str]] = {}
    for one in found:
        versions.setdefault(one.package, set()).add(one.version)
    here = (match[1] for match in map(PACKAGE.fullmatch, names) if match)
    packages = dict.fromkeys(PACKAGES[name] for name in map(package_name, here) if name in PACKAGES)
    notes = [
        f"{prefix} has {' and '.join(sorted(known))} of {name}; the first is taken"
        for name, known in versions.items()
        if len(known) > 1
    ]
    notes += [
        f"{prefix} has {name}, but nothing there says its release"
        for name in packages
        if name not in versions
    ]
    return FoundReleases(tuple(found), tuple(notes))


def _prefix(words: Sequence[str], folder: Path, variables: Mapping[str, str]) -> Path | None:
    """The folder of the environment; None where the command cannot be started on this machine."""
    rest = list(words)
    while rest and (VARIABLE.fullmatch(rest[0]) or rest[0] in WRAPPERS):
        name = rest.pop(0)
        if name not in WRAPPERS:
            continue
        if name in CONDA and rest[:1] == ["run"]:
            return _conda_prefix(rest, variables)
        if name in BESIDE and rest[:1] == ["run"]:
            place = variables.get("UV_PROJECT_ENVIRONMENT" if name == "uv" else "", BESIDE[name])
            return folder / place if (folder / place).is_dir() else None
        while rest and rest[0].startswith("-"):
            option = rest.pop(0)
            del rest[: int(option in WRAPPERS[name])]
    if rest and rest[0] in STARTERS:  # the first word behind its options that Python runs
        found = (_prefix_of_program(one, folder, variables) for one in rest[1:])
        return next((prefix for prefix in found if prefix), None)
    return _prefix_of_program(rest[0], folder, variables) if rest else None


def _conda_prefix(rest: Sequence[str], variables: Mapping[str, str]) -> Path:
    """The prefix that `conda run -n NAME` or `-p PREFIX` names; else the active one."""
    given = dict(pairwise(rest))
    path = given.get("-p") or given.get("--prefix")
    name = given.get("-n") or given.get("--name")
    roots = [Path(variables["CONDA_EXE"]).parents[1]] if variables.get("CONDA_EXE") else []
    roots += [Path.home() / one for one in CONDA_ROOTS] + [Path("/opt/conda")]
    if path is None and name is None:
        return Path(variables.get("CONDA_PREFIX") or roots[0])
    places = [Path(path)] if path else [root / "envs" / f"{name}" for root in roots]
    found = next((place for place in places if place.is_dir()), None)
    if found is None:
        raise InputError(f"the conda environment {path or name} is not on this machine")
    return found


def _prefix_of_program(name: str, folder: Path, variables: Mapping[str, str]) -> Path | None:
    """The environment of a program: that of its interpreter, where it is a script of Python."""
    if name.startswith("~") or os.path.dirname(name):
        program = folder / os.path.expanduser(name)
        if not program.exists():
            in_environment = program.parent.name in ("bin", "Scripts")
            if in_environment:
                raise InputError(f"{name} is not on this machine")
            return None  # a script such as src/train.py, which is started by its first line
    else:
        found = shutil.which(name, path=variables.get("PATH", ""))
        if found is None:
            return None
        program = Path(found)
    if program.parent.name == SHIMS:
        return _chosen_by_pyenv(program.parents[1], folder, variables)
    if program.name.startswith(("python", "pypy")):
        return program.parents[1]
    interpreter = _interpreter(program)
    if interpreter is None:
        return None
    if interpreter.name == "env":
        return _prefix_of_program("python3", folder, variables)
    if not interpreter.exists():
        raise InputError(f"{program} starts {interpreter}, which is not there")
    return interpreter.parents[1] if interpreter.name.startswith(("python", "pypy")) else None


def _chosen_by_pyenv(root: Path, folder: Path, variables: Mapping[str, str]) -> Path:
    """The Python that pyenv starts in a folder: a variable's, that of the nearest file, its own."""
    files = [place / ".python-version" for place in (folder.absolute(), *folder.absolute().parents)]
    named = [
        one.read_text("utf-8", "replace") for one in (*files, root / "version") if one.is_file()
    ]
    chosen = variables.get("PYENV_VERSION") or next(iter(named), "")
    version = next(iter(chosen.replace(":", " ").split()), "system")
    prefix = root / "versions" / version
    if not prefix.is_dir():
        raise InputError(f"pyenv has no Python {quoted(version)} in {root}")
    return prefix


def _interpreter(program: Path) -> Path | None:
    """What a script's first lines start; pip writes a shell's line where the path is long."""
    try:
        with program.open("rb") as file:
            lines = file.read(FIRST_BYTES).decode("utf-8", "replace").splitlines()
    except OSError as error:
        raise InputError(f"{program} cannot be read: {error.strerror}") from None
    if not lines or not lines[0].startswith("#!"):
        return None
    wrapped = len(lines) > 1 and lines[1].startswith("'''exec'")
    found = INTERPRETER.match(lines[1] if wrapped else lines[0])
    return Path(found[1]) if found else None


def _names(prefix: Path) -> tuple[list[str], list[str]]:
    """What lies in the folders of packages, in the order in which Python looks there, and conda's
    records.
    """
    folders = [place for one in PACKAGE_FOLDERS for place in sorted(prefix.glob(one))]
    if prefix.name == "usr":
        folders += sorted(prefix.glob("local/lib/python3*/dist-packages"))
    names = [name for folder in dict.fromkeys(folders) for name in sorted(os.listdir(folder))]
    conda = prefix / "conda-meta"
    return names, sorted(os.listdir(conda)) if conda.is_dir() else []


def _releases(names: Sequence[str], records: Sequence[str], place: str) -> Iterator[Release]:
    """The releases of the packages that matter."""
    found = [METADATA.fullmatch(name) for name in names]
    found += [CONDA_METADATA.fullmatch(name) for name in records]
    for match in found:
        release = match and release_of(match[1], match[2], place)
        if release:
            yield release
