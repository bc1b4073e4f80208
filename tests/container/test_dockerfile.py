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

from .dockerfile import DOCKERFILE, TEXT, last, stages, steps

IGNORED = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
HADOLINT = Path(sys.executable).with_name("hadolint")
IMAGES = ("tool", "torch")
PINNED = re.compile(r"[a-z]+:[\w.-]+@sha256:[0-9a-f]{64}")
SECRET = re.compile(r"token|secret|password|credential|(access|api)_?key", re.IGNORECASE)


def broken(text: str) -> list[str]:
    """Our own rules that a Dockerfile breaks, one sentence each."""
    names, found = {"scratch"}, []
    for name, rest in steps(text):
        image, *words = rest.split()
        if name == "FROM":
            if image not in names and not PINNED.fullmatch(image):
                found.append(f"{image} is not pinned by tag and digest, or names a registry")
            names |= set(words[1:])
        if name == "ADD":
            found.append(f"ADD {rest} fetches and unpacks")
        if name in ("ARG", "ENV") and SECRET.search(rest):
            found.append(f"{name} {image} would keep a secret in the image")
        if name == "USER" and not re.fullmatch(r"[1-9]\d*:[1-9]\d*", rest):
            found.append(f"USER {rest} is not two numbers other than root's")
        if name in ("CMD", "ENTRYPOINT") and not rest.startswith("["):
            found.append(f"{name} {rest} needs a shell")
        if name == "RUN" and re.search(r"curl|wget|https?:", rest):
            found.append(f"RUN {rest} fetches what nobody signed")
        if name == "COPY" and "--from=" not in rest:
            found += [f"COPY {one} is not sent" for one in (image, *words[:-1]) if not sent(one)]
    return found


def sent(source: str) -> bool:
    """Whether a source is there, and .dockerignore leaves it in by its name."""
    return (ROOT / source).exists() and f"!{source}" in IGNORED


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
        "ADD https://example.org/x /",
        "COPY src/nothing /x",
        "COPY tests /x",
    ],
)
def test_each_of_our_rules_can_be_broken(line: str) -> None:
    """One sentence for what is wrong."""
    assert len(broken(line)) == 1


def test_only_what_is_named_is_sent() -> None:
    """.dockerignore begins with everything; no secret and no cache is named."""
    rules = [line for line in IGNORED if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert {line for line in rules if not line.startswith("!")} == {
        "*",
        "**/__pycache__",
        "**/*.pyc",
        "**/*.egg-info",
        "**/*.so",
        "**/.env*",
    }


def test_pip_keeps_to_the_pins() -> None:
    """Each step that installs or builds a wheel names the constraints."""
    runs = [rest for every in stages().values() for name, rest in every if name == "RUN"]
    pips = [rest for rest in runs if re.search(r"pip (install|wheel)", rest)]
    assert len(pips) == 3
    assert all("constraints.txt" in rest for rest in pips)


def test_a_stage_copies_from_an_earlier_one() -> None:
    """A name that is misspelt would be pulled from a registry."""
    names = list(stages())
    for number, stage in enumerate(stages().values()):
        sources = [re.search(r"--from=(\S+)", rest) for name, rest in stage if name == "COPY"]
        assert {one[1] for one in sources if one} <= set(names[:number])


@pytest.mark.parametrize("name", IMAGES)
def test_each_image_says_who_runs_and_how(name: str) -> None:
    """A user that is not root, an exec form, a healthcheck or its absence on purpose, labels."""
    assert last(name, "USER") == "1000:1000"
    assert last(name, "ENTRYPOINT").endswith('/bin/gpu-mem-calc"]')
    assert last(name, "CMD") == '["--help"]'
    assert last(name, "WORKDIR") == "/tmp"
    assert re.search(r'CMD \["|^NONE$', last(name, "HEALTHCHECK"))
    label = last(name, "LABEL")
    assert f'org.opencontainers.image.version="{__version__}"' in label
    assert 'org.opencontainers.image.licenses="MIT"' in label


def test_the_default_is_the_small_image() -> None:
    """`docker build` without --target makes the last stage."""
    assert list(stages())[-1] == "tool"


def test_the_description_is_the_packages() -> None:
    """One fact in one place: the label says what pyproject.toml says."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == __version__
    assert project["description"] in last("tool", "LABEL")
