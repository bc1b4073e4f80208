"""The gallery has the lines that its commands print today."""

from __future__ import annotations

import re

import pytest

from tests.corpus import sampled
from tests.docs.test_documents import ROOT, script

GALLERY = script("gallery")
PAGE = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
ROWS = GALLERY["rows"]()


@pytest.mark.parametrize("row", sampled({row["thread"]: row for row in ROWS}, keep=6))
def test_an_entry_is_what_its_command_prints(row: dict[str, str]) -> None:
    """With its line, what happened and our grade."""
    assert GALLERY["entry"](row, GALLERY["last_line"](row["command"])) in PAGE


def test_every_question_is_a_public_thread_of_a_known_kind() -> None:
    """Thirty of them, each once, with some of each kind and some that we do not answer."""
    assert len({row["url"] for row in ROWS}) == len(ROWS) == 30
    assert {row["kind"] for row in ROWS} == GALLERY["KINDS"].keys()
    assert all(re.fullmatch(r"https://github\.com/[^/]+/[^/]+/\w+/\d+", row["url"]) for row in ROWS)
    assert {row["ours"] for row in ROWS} <= {*GALLERY["GRADES"]}
    assert any(row["ours"] == "wrong" for row in ROWS)
    assert all(row["thread"] in PAGE for row in ROWS)
