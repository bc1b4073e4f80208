"""What `make drift` finds in one release: definitions, fields, and what a citation means."""

from __future__ import annotations

from pathlib import Path

import pytest

from maintenance.drift import snapshot
from maintenance.drift.citations import citations
from maintenance.drift.definitions import Module, difference
from maintenance.drift.fields import REQUIRED, fields
from maintenance.drift.trees import Tree

from .test_drift import LAYERS, wheel


def cited(tmp_path: Path, text: str) -> list[snapshot.Resolved | None]:
    """What the citations of a file of ours mean in PEFT as it was read."""
    ours = tmp_path / "step" / "ours.py"
    ours.parent.mkdir()
    ours.write_text(text, encoding="utf-8")
    trees = {"PEFT": Tree(wheel(tmp_path, {"layers.py": LAYERS}))}
    return [snapshot.resolve(citation, trees) for citation in citations(ours, tmp_path)]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('"""PEFT 0.21.2 peft/layers.py:9."""', ("Linear.forward",)),
        ('"""PEFT 0.21.2 layers.py:15-22."""', ("kept", "moves", "leaves")),
        ('"""PEFT 0.21.2 layers.py:9, 16."""', ("Linear.forward", "kept")),
        ('"""PEFT 0.21.2 layers.py:9 forward, :16 kept."""', ("Linear.forward", "kept")),
        ('CODE = "PEFT 0.21.2"\nLINE = f"{CODE} layers.py:2"', ("SCALE",)),
        ("# PEFT 0.21.2\n# layers.py Linear.forward", ("Linear.forward",)),
        ('"""PEFT 0.21.1 layers.py:9 Linear.backward."""', ("Linear.backward",)),
        ('"""Lines of PEFT 0.21.2."""\nx = 1  # layers.py:13', ("Linear.backward",)),
        ('"""PEFT 0.21.2 layers.py."""', ()),
    ],
)
def test_a_citation_means_the_definition_around_its_lines_or_by_its_name(
    tmp_path: Path, text: str, names: tuple[str, ...]
) -> None:
    """Lines count at the version that was read; at another one names do."""
    assert cited(tmp_path, text) == [
        snapshot.Resolved("step/ours.py", "PEFT", "peft/layers.py", names)
    ]


def test_a_citation_of_another_framework_means_nothing_here(tmp_path: Path) -> None:
    """A file of the same name in another framework is not taken for it."""
    assert cited(tmp_path, '"""vLLM 0.11.0 layers.py:9."""') == [None]


def test_fields_are_those_of_classes_constructors_functions_and_parsers() -> None:
    """With their defaults as code."""
    module = Module(
        "KEY = 'a'\n"
        "class Config:\n"
        "    plain = 1\n"
        "    size: int = Field(4, ge=0)\n"
        "    def __init__(self, width, depth=2, **kwargs):\n"
        "        self.top = kwargs.pop('top', 50)\n"
        "def parser(p, *, rate: float = 0.1):\n"
        "    p.add_argument('--lr', default=3)\n"
        "    p.add_argument('--bf16', action='store_true')\n"
    )
    assert fields(module, "Config") == {"size": "4", "width": REQUIRED, "depth": "2", "top": "50"}
    assert fields(module, "parser") == {"p": REQUIRED, "rate": "0.1"}
    assert fields(module, "FLAGS") == {"--lr": "3", "--bf16": "store_true"}
    assert fields(module, "CONSTANTS") == {"KEY": "'a'"}


def test_a_file_that_cannot_be_parsed_has_no_definitions() -> None:
    """It is written for another Python."""
    assert Module("def broken(:\n").definitions == {}


def test_a_difference_counts_statements_on_both_sides() -> None:
    """One replaced is one added and one removed."""
    old, new = (
        Module(f"def f():\n    a = {number}\n    return a\n").definitions["f"].digest
        for number in (1, 2)
    )
    assert difference(old, new) == (1, 1)
