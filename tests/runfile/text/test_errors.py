"""How a sentence reaches a terminal."""

from __future__ import annotations

import json
import pickle

import pytest

from gpu_mem_calculator.report.lines import colour_text, line, plain
from gpu_mem_calculator.runfile.text.errors import (
    InputError,
    first_problems,
    print_to_stderr,
    printable,
)


@pytest.mark.parametrize(
    "char", ["\x1b", "\x07", "\r", "\n", "\x7f", "\x9b", "\u202e", "\u2028", "\U000e0001", "\udc80"]
)
def test_a_control_character_is_shown_as_json_escapes_it(char: str) -> None:
    """Characters that control a terminal are escaped, and no character is lost."""
    shown = printable(f"a{char}b")
    assert shown.isprintable()
    assert json.loads(f'"{shown}"') == f"a{char}b"


def test_text_stays_as_it_is() -> None:
    """Letters of every script, signs and spaces, also those that do not break."""
    text = "a b\xa0c ✓ × é 模型 🙂"
    assert printable(text) == text
    assert printable("a\n\tb", kept="\n\t") == "a\n\tb"


def test_a_sentence_is_one_line_whatever_it_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    """A server's answer cannot add a line to the output."""
    print_to_stderr("the server says \x1b]0;title\x07\nall is well")
    assert capsys.readouterr().err == (
        "gpu-mem-calc: the server says \\u001b]0;title\\u0007\\nall is well\n"
    )


def test_a_report_has_no_escape_codes_but_its_colours() -> None:
    """A model's name, which a file brings, is no exception."""
    lines = [line("tiny\x1b[2J", "bold")]
    assert plain(lines) == "tiny\\u001b[2J"
    assert "\x1b[2J" not in colour_text(lines)
    assert "\x1b[1m" in colour_text(lines)


def test_one_sentence_is_one_problem() -> None:
    """An error takes one sentence or several, and is the same after it was sent to a process."""
    assert InputError("a=0 must be 1 or more").problems == ["a=0 must be 1 or more"]
    assert InputError(["a is missing", "b is missing"]).problems == ["a is missing", "b is missing"]
    assert str(pickle.loads(pickle.dumps(InputError("a is missing")))) == "a is missing"


@pytest.mark.parametrize(("problems", "said"), [(0, 0), (20, 20), (21, 21), (30, 21)])
def test_twenty_sentences_are_enough(problems: int, said: int) -> None:
    """Of more, the last says that there are more."""
    found = first_problems(f"{number} is wrong" for number in range(problems))
    assert len(found) == said
    assert ("there are more problems; correct these first" in found) == (problems > 20)
