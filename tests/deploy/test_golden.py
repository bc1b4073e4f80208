"""Every case's manifest as text, so that a changed template is a readable diff.

`python -m tests.deploy.test_golden` writes them anew.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from .cases import CASES, documents
from .go_yaml import Dumper, load_all
from .helm_program import HELM, RENDERERS, by_name

HERE = Path(__file__).parent / "golden"


def text(name: str) -> str:
    """A case's documents, in the order of their kinds and names."""
    found = sorted(documents(name), key=lambda one: (one["kind"], one["metadata"]["name"]))
    return yaml.dump_all(found, Dumper=Dumper, sort_keys=False, width=100)


@pytest.mark.parametrize("name", CASES)
def test_a_manifest_is_as_it_was(name: str) -> None:
    """A template that changes shows here, key by key."""
    assert text(name) == (HERE / f"{name}.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("renderer", RENDERERS)
def test_renderers_agree(renderer: str, name: str, tmp_path: Path) -> None:
    """gotpl, and Helm itself where it is there, make the golden documents."""
    golden = load_all((HERE / f"{name}.yaml").read_text(encoding="utf-8"))
    assert by_name(RENDERERS[renderer](CASES[name], tmp_path)) == by_name(golden)


@pytest.mark.skipif(HELM is None, reason="no helm: the chart is rendered by gotpl alone")
def test_helm_is_one_that_the_chart_asks_for() -> None:
    """3.15 or newer, as the page on the chart says."""
    assert HELM is not None
    line = [HELM, "version", "--template", "{{.Version}}"]
    said = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    assert tuple(map(int, said.removeprefix("v").split(".")[:2])) >= (3, 15)


def test_every_manifest_is_a_case() -> None:
    """A case that is gone takes its manifest along."""
    assert {path.stem for path in HERE.glob("*.yaml")} == set(CASES)


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for old in HERE.glob("*.yaml"):
        old.unlink()
    for case in CASES:
        (HERE / f"{case}.yaml").write_text(text(case), encoding="utf-8")
