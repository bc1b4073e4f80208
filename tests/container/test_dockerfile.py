"""The Dockerfile keeps the rules of its trade and ours."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gpu_mem_calculator import __version__
from tests.conftest import ROOT

from .dockerfile import Stage, read

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
TEXT = DOCKERFILE.read_text(encoding="utf-8")
HADOLINT = Path(sys.executable).with_name("hadolint")
IMAGES = ("tool", "torch")
PINNED = re.compile(r"[a-z]+:[\w.-]+@sha256:[0-9a-f]{64}")
SECRET = re.compile(r"token|secret|password|credential|(access|api)_?key", re.IGNORECASE)


def last(stage: Stage, name: str) -> str:
    """What the last such instruction of a stage says."""
    return [step.text for step in stage.steps if step.name == name][-1]


def broken(text: str) -> list[str]:
    """Our own rules that a Dockerfile breaks, one sentence each."""
    from .dockerfile import steps

    found = []
    names: set[str] = {"scratch"}
    for step in steps(text):
        if step.name == "FROM":
            image, *rest = step.words()
            if image not in names and not re.fullmatch(
                r"[a-z]+:[\w.-]+@sha256:[0-9a-f]{64}", image
            ):
                found.append(f"{image} is not pinned by tag and digest, or names a registry")
            if ":latest" in image:
                found.append(f"{image} is whatever is newest")
            names |= set(rest[1:])
        if step.name in ("ARG", "ENV") and SECRET.search(step.text):
            found.append(f"{step.name} on line {step.line} would keep a secret in the image")
        if step.name == "USER" and not re.fullmatch(r"[1-9]\d*:[1-9]\d*", step.text):
            found.append(f"USER {step.text} is not two numbers other than root's")
        if step.name in ("CMD", "ENTRYPOINT") and not step.text.startswith("["):
            found.append(f"{step.name} on line {step.line} needs a shell")
        if step.name == "RUN" and re.search(r"curl|wget|https?:", step.text):
            found.append(f"RUN on line {step.line} fetches what nobody signed")
    return found


def test_a_linter_finds_nothing() -> None:
    """Hadolint, with shellcheck in it, at its strictest."""
    command = [str(HADOLINT), "--failure-threshold", "style", str(DOCKERFILE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_linter_can_find_something(tmp_path: Path) -> None:
    """So that a linter that does not run is seen."""
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM debian:latest\nRUN cd / && sudo ls\n")
    done = subprocess.run([str(HADOLINT), str(bad)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "DL3007" in done.stdout


def test_what_the_linter_is_told_to_ignore_has_a_reason() -> None:
    """Each code is explained in the comment above where it first stands."""
    codes = re.findall(r"(?:hadolint ignore|shellcheck disable)=(\S+)", TEXT)
    assert set(codes) == {"DL3008", "SC2086"}
    assert re.search(r"# Debian keeps one version.*\n# hadolint ignore=DL3008", TEXT)
    assert all(" # " in line for line in TEXT.splitlines() if "shellcheck disable" in line)


def test_our_own_rules_hold() -> None:
    """Pinned, numeric users, exec forms, no secret, nothing fetched by hand."""
    assert broken(TEXT) == []


@pytest.mark.parametrize(
    "line",
    [
        "FROM debian:latest",
        "FROM debian:trixie-slim",
        "FROM example.org/debian:1@sha256:" + "0" * 64,
        "USER root",
        "USER 0:0",
        "USER calculator",
        "ENV HF_TOKEN=x",
        "ARG API_KEY",
        "CMD gpu-mem-calc --help",
        "RUN curl -O example.org/x",
    ],
)
def test_each_of_our_rules_can_be_broken(line: str) -> None:
    """One sentence for what is wrong."""
    assert len(broken(line)) in (1, 2)


def test_instructions_that_hide_something_are_refused() -> None:
    """ADD fetches and unpacks; it is not among the instructions that are read."""
    from .dockerfile import DockerfileError, steps

    with pytest.raises(DockerfileError, match="ADD is not understood"):
        list(steps("FROM scratch\nADD https://example.org/x /"))


@pytest.mark.parametrize("name", IMAGES)
def test_each_image_says_who_runs_and_how(name: str) -> None:
    """A user that is not root, an exec form, a healthcheck or its absence on purpose, labels."""
    stage = read(DOCKERFILE)[name]
    assert last(stage, "USER") == "1000:1000"
    assert last(stage, "ENTRYPOINT").endswith('/bin/gpu-mem-calc"]')
    assert last(stage, "CMD") == '["--help"]'
    assert last(stage, "WORKDIR") == "/tmp"
    assert last(stage, "HEALTHCHECK").startswith(('CMD ["', "NONE"))
    label = last(stage, "LABEL")
    assert f'org.opencontainers.image.version="{__version__}"' in label
    assert 'org.opencontainers.image.licenses="MIT"' in label


def test_the_default_is_the_small_image() -> None:
    """`docker build` without --target makes the last stage."""
    assert list(read(DOCKERFILE))[-1] == "tool"


def test_the_description_is_the_packages() -> None:
    """One fact in one place: the label says what pyproject.toml says."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == __version__
    assert project["description"] in last(read(DOCKERFILE)["tool"], "LABEL")
