"""Documents use the field's words: some that readers stumbled over are not used again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT

DOCUMENTS = sorted(
    path
    for path in (
        *ROOT.glob("*.md"),
        *(f for d in ("docs", "examples", "tools", "deploy") for f in (ROOT / d).rglob("*.md")),
    )
    if path.name not in ("CHANGELOG.md", "LICENSES.md")
)
# a pattern, and the words to use instead
BANNED = {
    r"(?<!random )(?<!--)(?<!\.)seeds?(?![\w.])": "a blog post, a public article; random seed",
    r"(?<!--)rungs?": "level, size",
    r"told": "says, shows; distinguished",
    r"lies|lie (?:in|beside|on|there)": "is, are",
    r"let (?:it |them |each )?go|lets (?:it |them |each )?go": "free, freed",
    r"lets? \w+ pass": "accepts",
    r"mend(?:ed|s|ing)?": "fix, fixed",
    r"anew": "again, regenerate",
    r"beside (?:torch|PyTorch)": "outside PyTorch",
    r"roomy|(?:with|has|have|had|no|makes|the|needs?) room": "free memory, enough memory",
    r"hangs? on": "depends on",
    r"untried": "untested",
    r"(?<!')cuts?(?![- ]cross|'|, Apple)": "sharded, split, stopped, reduced",
    r"behind|goes": "after, under; is, becomes",
    r"one behind the other|goes on where": "one after another, continues where",
    r"as (?:its|the) \w+ (?:has|have) (?:it|them)": "as in",
    r"has it otherwise|had it otherwise": "differs, differed",
    r"gets? by with": "needs at least",
    r"all the same": "anyway",
    r"how true it is|what it does not|what lies|truer": "Accuracy, Limitations, more accurate",
    r"closed forms?": "published formula",
    r"trial run": "profiling pass",
    r"by its settings|by what the card": "max_num_seqs, roofline",
}


def prose(text: str) -> str:
    """A document without its code, whose words are the program's."""
    text = re.sub(r"^```.*?^```$", _blank, text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"^    .*$|`[^`\n]*`|\]\([^)\n]*\)", " ", text, flags=re.MULTILINE)


def _blank(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n")


def found_in(text: str) -> list[str]:
    """Each line with a banned word, and what to write instead."""
    return [
        f"line {text.count(chr(10), 0, one.start()) + 1}: {one[0]!r}: write {better}"
        for pattern, better in BANNED.items()
        for one in re.finditer(rf"(?<![\w-])(?:{pattern})(?![\w-])", text, re.IGNORECASE)
    ]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_document_uses_the_words_of_the_field(path: Path) -> None:
    """See docs/glossary.md."""
    assert found_in(prose(path.read_text("utf-8"))) == []


@pytest.mark.parametrize(
    ("said", "number"),
    [
        ("The second seed measured Phi-3.", 1),
        ("Three rungs of truth", 1),
        ("What lies beside torch", 3),
        ("Blocks are let go and the error was mended.", 2),
        ("Data follow from the random seed; use `--seed 1` or --rung trace.", 0),
        ("Families supplies the bottom of the ladder; classroom, gold, amend.", 0),
    ],
)
def test_banned_words_are_found(said: str, number: int) -> None:
    """And only those."""
    assert len(found_in(prose(said))) == number
