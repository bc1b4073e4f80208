"""A wheel brings kept tables, and the replay in C where there is a compiler."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from gpu_mem_calculator import __version__
from tests.conftest import ROOT

BUILD = runpy.run_path(str(ROOT / "native" / "build.py"), run_name="build")
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
BACKEND = "import sys; from hatchling import build; print(getattr(build, sys.argv[1])(sys.argv[2]))"
PARSED = (
    "import sys; from gpu_mem_calculator.cli.main import main; main(['quick', '7']); "
    "print('tomllib' in sys.modules)"
)
NOWHERE = "/nonexistent"  # a PATH without a compiler


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An unpacked source distribution, and the folder of what builds it."""
    folder, backend = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("backend")
    subprocess.run([*PIP, "install", "--target", str(backend), "hatchling>=1.25"], check=True)
    name = built("build_sdist", ROOT, folder, backend)
    with tarfile.open(folder / name) as packed:
        packed.extractall(folder, filter="data")
    return folder / name.removesuffix(".tar.gz"), backend


def built(what: str, source: Path, target: Path, backend: Path, **variables: str) -> str:
    """The name of the file that the backend writes."""
    env = {**os.environ, "PYTHONPATH": str(backend), **variables}
    command = [sys.executable, "-c", BACKEND, what, str(target)]
    run = subprocess.run(command, cwd=source, env=env, stdout=subprocess.PIPE, text=True)
    assert run.returncode == 0
    return run.stdout.split()[-1]


def answers(wheel: Path, folder: Path) -> tuple[str, str]:
    """What an installed wheel says of itself, and of a model."""
    subprocess.run([*PIP, "install", "--no-deps", "--target", str(folder), str(wheel)], check=True)
    env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run([sys.executable, "-c", PARSED], env=env, capture_output=True, text=True)
    assert run.stdout.splitlines()[-1] == "False", "a table was parsed, though the wheel keeps it"
    program = [sys.executable, "-m", "gpu_mem_calculator"]
    first, second = (
        subprocess.run([*program, *words], cwd=folder, env=env, capture_output=True, text=True)
        for words in (["--version"], ["quick", "350M"])
    )
    return first.stdout, second.stdout


@pytest.mark.proof
def test_a_wheel_is_built_with_and_without_a_compiler(
    source: tuple[Path, Path], tmp_path: Path
) -> None:
    """From the source distribution alone; both give the same answer."""
    unpacked, backend = source
    if not BUILD["compile_library"](tmp_path / "trial.so"):
        pytest.skip("there is no compiler here")
    native = built("build_wheel", unpacked, tmp_path, backend)
    assert native.startswith(f"gpu_mem_calculator-{__version__}-py3-none-")
    assert "many" not in native
    version, answer = answers(tmp_path / native, tmp_path / "native")
    assert version == f"gpu-mem-calc {__version__} (replay in C)\n"
    pure = built("build_wheel", unpacked, tmp_path, backend, PATH=NOWHERE, CC="cc")
    assert pure == f"gpu_mem_calculator-{__version__}-py3-none-any.whl"
    version, same = answers(tmp_path / pure, tmp_path / "pure")
    assert version == f"gpu-mem-calc {__version__} (replay in Python)\n"
    assert "GiB" in answer
    assert answer == same


@pytest.mark.proof
def test_the_source_has_nothing_that_is_made(source: tuple[Path, Path]) -> None:
    """A library would be another platform's, and a kept table could be of an older one."""
    with tarfile.open(f"{source[0]}.tar.gz") as packed:
        names = packed.getnames()
    assert not [name for name in names if name.endswith((".so", ".marshal", ".pyc"))]
    assert f"{source[0].name}/native/replay.c" in names
