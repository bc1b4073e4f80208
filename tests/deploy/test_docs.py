"""The commands that the pages of docs/deploy show: each renders, or is refused as it says."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from .cases import Case, rendered
from .policies import POLICIES
from .published import VERSIONS, problems
from .render import CHART, ChartError

PAGES = sorted((Path(__file__).parents[2] / "docs" / "deploy").glob("*.md"))
OPTIONS = {"--set", "--values", "-f", "--name-template", "--namespace", "--api-versions"}


@dataclass(frozen=True)
class Shown:
    """A command on a page, and what the page shows under it."""

    page: str
    words: tuple[str, ...]
    under: str

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"


def commands() -> list[Shown]:
    """Every `helm template`, `install` and `upgrade` in a block of code."""
    found = []
    for page in PAGES:
        blocks = re.findall(r"^```[a-z]*\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
        for block in blocks:
            lines = block.replace("\\\n", " ").splitlines()
            for at, line in enumerate(lines):
                if re.match(r"(\$ )?helm (template|install|upgrade) ", line):
                    text = line.removeprefix("$ ").split(" | ")[0]
                    words = tuple(shlex.split(text, comments=True))
                    found.append(Shown(page.name, words, "\n".join(lines[at + 1 :])))
    return found


def as_case(shown: Shown) -> Case:
    """What is given on the command line."""
    plain, given = [], dict[str, list[str]]((option, []) for option in OPTIONS)
    words = list(shown.words[2:])
    while words:
        word = words.pop(0)
        if word in OPTIONS:
            given[word].append(words.pop(0))
        elif word != "--reuse-values":
            assert not word.startswith("-"), word
            plain.append(word)
    assert plain[-1] == ".", shown
    name = [*given["--name-template"], *plain[:-1], "release-name"][0]
    return Case({}, (*given["--values"], *given["-f"]), tuple(given["--set"]), name)


SHOWN = commands()


@pytest.mark.parametrize("at", range(len(SHOWN)), ids=[str(one) for one in SHOWN])
def test_a_command_does_what_its_page_says(at: int) -> None:
    """Its documents are valid and keep every policy; a refusal is the one that is shown."""
    shown = SHOWN[at]
    case = as_case(shown)
    if "--reuse-values" in shown.words:
        before = [as_case(one) for one in SHOWN[:at] if one.page == shown.page]
        last = [one for one in before if one.name == case.name][-1]
        case = replace(case, files=(*last.files, *case.files), sets=(*last.sets, *case.sets))
    own = [file for file in case.files if not (CHART / file).exists()]
    if own:  # the reader's own files are called so, and are nowhere to be had
        assert all(file.startswith("my-") for file in own), own
        return
    refused = re.match(r"Error: .*?: ([^\n]+(\n[^\n$]+)*)", shown.under)
    if refused:
        with pytest.raises(ChartError) as said:
            rendered(case)
        assert " ".join(refused[1].split()).endswith(str(said.value)), said.value
        return
    documents = rendered(case)
    assert documents
    assert [one for check in POLICIES.values() for one in check(documents)] == []
    assert [one for document in documents for one in problems(document, VERSIONS[-1])] == []


def test_there_are_commands() -> None:
    """Of every mode's page."""
    assert {one.page for one in SHOWN} >= {"deepspeed.md", "estimate.md", "measure.md", "web.md"}
