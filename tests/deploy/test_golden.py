"""Every case's manifest as text, so that a changed template is a readable diff.

`python -m tests.deploy.test_golden` writes them anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from .cases import CASES, documents
from .go_yaml import Dumper, load_all
from .helm_program import RENDERERS, by_name

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
    """gotpl, and Helm itself where a `helm` is on the PATH, make the golden documents."""
    golden = load_all((HERE / f"{name}.yaml").read_text(encoding="utf-8"))
    assert by_name(RENDERERS[renderer](CASES[name], tmp_path)) == by_name(golden)


def test_every_manifest_is_a_case() -> None:
    """A case that is gone takes its manifest along."""
    assert {path.stem for path in HERE.glob("*.yaml")} == set(CASES)


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for old in HERE.glob("*.yaml"):
        old.unlink()
    for case in CASES:
        (HERE / f"{case}.yaml").write_text(text(case), encoding="utf-8")
