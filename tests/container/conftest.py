"""What is installed in the image, installed here: in an empty environment, from the same pins."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.conftest import ROOT

from .dockerfile import stages

sys.path.insert(0, str(ROOT / "deploy"))  # its scripts import each other


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment's folder."""
    folder = tmp_path_factory.mktemp("installed")
    install(folder, tmp_path_factory.mktemp("context"))
    return folder


def install(folder: Path, context: Path) -> None:
    """Install what the Dockerfile's stage `wheel` copies, as its stage `files` does."""
    for name, rest in stages()["wheel"]:
        for source in rest.split()[:-1] if name == "COPY" else ():
            copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
            copy(ROOT / source, context / source)
    venv.create(folder)
    python = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python")]
    options = ["--quiet", "--only-binary=:all:", "--constraint", "constraints.txt"]
    subprocess.run([*python, "install", *options, ".[hub,web,plan]"], cwd=context, check=True)
