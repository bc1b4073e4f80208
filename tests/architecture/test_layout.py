"""A folder is a concept: unique names, small packages, documents that lead to existing files."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import ROOT

SOURCE = ROOT / "src" / "gpu_mem_calculator"
PACKAGES = sorted(p.parent for p in SOURCE.glob("*/__init__.py"))
PATH = re.compile(r"`([\w<>]+(?:/[\w<>]+)*/(?:\w+\.py)?)`")
LOOSE = {"__init__", "__main__", "formulas"}  # the package, its command, a public module


def named_paths(document: str) -> list[str]:
    """Every path inside the package that a document names in backticks."""
    text = (ROOT / document).read_text(encoding="utf-8")
    own = {p.name for p in PACKAGES}
    return [path for path in PATH.findall(text) if path.partition("/")[0] in own]


@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "docs/how-it-works.md"])
def test_paths_that_documents_name_exist(document: str) -> None:
    """A newcomer who follows a path finds a file; `<server>` stands for each of them."""
    paths = named_paths(document)
    assert len(paths) > 10
    missing = [path for path in paths if not any(SOURCE.glob(re.sub(r"<\w+>", "*", path)))]
    assert missing == []


def test_contributing_answers_ten_questions() -> None:
    """Each of them with a path."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    questions = [line for line in text.splitlines() if line.startswith("| ") and "?" in line]
    assert len(questions) == 10
    assert all(PATH.search(line) for line in questions)


def test_the_map_has_every_package() -> None:
    """docs/how-it-works.md lists all folders of the package."""
    text = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    assert [p.name for p in PACKAGES if f"`{p.name}/`" not in text] == []


def test_the_glossary_is_short() -> None:
    """at most a hundred rows, and no word twice."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    words = [word for row in rows if row != "word" for word in row.split(", ")]
    assert 20 < len(rows) <= 100
    assert [word for word, count in Counter(words).items() if count > 1] == []


def lines(folder: Path) -> int:
    """Lines of Python below a folder."""
    return sum(len(p.read_text(encoding="utf-8").splitlines()) for p in folder.rglob("*.py"))


def test_no_package_is_a_fifth_of_the_source() -> None:
    """A package that grows past 20 % is two."""
    total = lines(SOURCE)
    assert {p.name: n for p in PACKAGES if (n := lines(p)) > total / 5} == {}


def test_no_module_lies_loose_beside_folders() -> None:
    """Below the rooms, a package that has folders has its code in them."""
    loose = {
        str(path.relative_to(SOURCE))
        for folder in [SOURCE, *SOURCE.glob("*/*")]
        if any(folder.glob("*/__init__.py"))
        for path in folder.glob("*.py")
        if path.stem not in LOOSE
    }
    assert loose == set()
