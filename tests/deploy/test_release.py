"""A release: its workflows, what it says of itself, and the files that `make release` makes."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_mem_calculator import __version__
from tests.conftest import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PIN = re.compile(r"uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")


def read(path: Path) -> Any:
    """A workflow; YAML takes its `on` for true."""
    data = yaml.safe_load(path.read_text("utf-8"))
    data["on"] = data.pop(True)
    return data


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_do_little(path: Path) -> None:
    """It reads the repository; the job that publishes may say who it is, and has no checkout."""
    found = read(path)
    assert found["permissions"] == {"contents": "read"}
    assert "pull_request_target" not in found["on"]
    assert "workflow_run" not in found["on"]
    for name, job in found["jobs"].items():
        assert job["timeout-minutes"] <= 60
        allowed = {"id-token": "write"} if name == "publish" else None
        assert job.get("permissions") == allowed
        used = [step["uses"].partition("@")[0] for step in job["steps"] if "uses" in step]
        assert ("actions/checkout" in used) == (name != "publish")
        for step in job["steps"]:
            assert "${{" not in step.get("run", "")
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("path", [*WORKFLOWS, ROOT / "docs/pulls.md"], ids=lambda path: path.stem)
def test_actions_are_pinned(path: Path) -> None:
    """Each by a whole commit, with the release beside it; the same one everywhere."""
    uses = [line for line in path.read_text("utf-8").splitlines() if "uses:" in line]
    others = [line for line in uses if not PIN.search(line) and "OWNER/" not in line]
    assert uses
    assert others == []


def test_an_action_has_one_commit_everywhere() -> None:
    """So that an update changes all of them."""
    text = "".join(path.read_text("utf-8") for path in [*WORKFLOWS, ROOT / "docs/pulls.md"])
    found = set(re.findall(r"uses: ([\w.-]+/[\w./-]+)@([0-9a-f]{40})", text))
    assert len(found) == len({name for name, _ in found}) == 5


def test_what_the_release_says_of_itself() -> None:
    """The version, the licence and the words are the same in every file."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert cited["version"] == PROJECT["version"] == __version__
    assert cited["abstract"] == PROJECT["description"]
    assert cited["license"] == PROJECT["license"]
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    pythons = {f"Programming Language :: Python :: {one}" for one in ("3.11", "3.12", "3.13")}
    assert pythons <= set(PROJECT["classifiers"])


@pytest.mark.proof
def test_make_release(tmp_path: Path) -> None:
    """The files, checked and installed; the sums are theirs, and the list has what is needed."""
    pytest.importorskip("twine")
    words = [sys.executable, "deploy/release.py", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if "No matching distribution" in done.stderr:
        pytest.skip("no index can be asked here")
    assert done.returncode == 0, done.stdout + done.stderr
    names = {path.name for path in tmp_path.iterdir()}
    begin = f"gpu_mem_calculator-{__version__}"
    assert {f"{begin}.tar.gz", f"{begin}-py3-none-any.whl", "SHA256SUMS"} <= names
    assert any(name.startswith(f"{begin}-py3-none-linux_") for name in names)
    for line in (tmp_path / "SHA256SUMS").read_text().splitlines():
        value, _, name = line.partition("  ")
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == value
    listed = json.loads((tmp_path / "gpu-mem-calculator.cdx.json").read_text())
    assert {one["name"].lower() for one in listed["components"]} == {"msgspec", "pyyaml"}
    assert f"installed and run by Python {sys.version_info[0]}.{sys.version_info[1]}" in done.stdout
