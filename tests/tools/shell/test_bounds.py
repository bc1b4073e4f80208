"""Reading a shell script ends soon and with a sentence, whatever is in it."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.reading.named_files import NamedFiles
from gpu_mem_calculator.tools.shell.bounds import MOST_CHARACTERS
from gpu_mem_calculator.tools.shell.read import read_script

END = "\npython train.py --a $A\n"
SECONDS = 5  # with other tests on the same cores; alone each takes less than one
LONG = {
    "size": "echo a\n" * 14_000_000,
    "commands": "echo a\n" * 30_000,
    "variable": "A=xx\n" + "A=$A$A\n" * 60,
    "array": "A=(a b)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 60,
    "file": "A=xxxxxxxxxxxxxxxx\n" + "echo $A$A >> f\n" * 9_000,
    "eval": "A='eval $A; eval $A'\neval $A",
    "substitutions": "A=" + "$(" * 50_000 + ")" * 50_000,
    "parentheses": "((" * 40_000 + " )" * 80_000,
    "defaults": "A=" + "${A:-" * 40_000 + "}" * 40_000,
    "ifs": "if true; then\n" * 10_000 + "fi\n" * 10_000,
    "groups": "{ " * 100_000,
    "nots": "! " * 100_000,
    "functions": "a() " * 60_000,
    "recursion": "f() { f; f; }\nf",
    "loops": "for i in {1..9} 1 2 3 4 5 6 7 8 9; do " * 12 + "A=1;" + " done;" * 12,
    "words": "for a in " + "x " * 100_000 + "; do echo $a; done",
    "patterns": "A=" + "a" * 900 + "\n" + "B=${A%%*a*a*a*b}\n" * 9_000,
    "power": "A=$((9**9**9**9))\n" * 5_000,
    "branches": "case a in " + "b) ;; " * 40_000 + " esac",
    "programs": "torchrun train.py\n" * 12_000,
    "exports": "".join(f"export V{i}=1\n" for i in range(9_000)) + "python train.py\n" * 5_000,
}


@pytest.mark.parametrize("name", LONG)
def test_ends_soon(name: str) -> None:
    """Bombs of many kinds."""
    start = time.monotonic()
    try:
        commands = read_script(LONG[name] + END, NamedFiles(folder=None))
        assert len(commands) < 1000
    except InputError as error:
        assert "script" in str(error)
    assert time.monotonic() - start < SECONDS


def test_too_long() -> None:
    """The size is bounded."""
    with pytest.raises(InputError, match=f"more than {MOST_CHARACTERS:,} characters"):
        read_script("#" * (MOST_CHARACTERS + 1), NamedFiles(folder=None))


PIECES = st.sampled_from(
    [
        *("A=1", "$A", "${A", "}", "$(", ")", "(", "((", "))", "`", '"', "'", "\\", "\n", ";", "|"),
        *("&&", "||", "if", "then", "fi", "for", "in", "do", "done", "case", "esac", ";;", "<<E"),
        *("E\n", "[", "]", "[[", "]]", "while", "{", "function f", "f()", "export", "eval", "#"),
        *("A=(", "A+=(", "${A[@]}", "${A:-", "$((", "$1", "$@", "python train.py", "bash -c", " "),
        *("source x", "cat > f", "shift", "set --", "#SBATCH -N 2\n", "é", "\0", "…", "%", "*"),
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=30), st.sampled_from(["", " "]))
def test_any_text_is_read_or_refused(pieces: list[str], between: str) -> None:
    """Random pieces of shell are commands or a sentence."""
    try:
        commands = read_script(between.join(pieces), NamedFiles(folder=None), ("a", "b"))
    except InputError as error:
        assert error.problems
    else:
        assert all(command.words for command in commands)


WORD = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)


@settings(max_examples=150, deadline=None)
@given(st.lists(WORD, max_size=6))
def test_quoted_words_come_back(words: list[str]) -> None:
    """The words that shlex quotes are read as they were."""
    import shlex

    text = shlex.join(["python", "train.py", *words]).replace("\r\n", "\n")
    expected = tuple(word.replace("\r\n", "\n") for word in words)
    assert read_script(text, NamedFiles(folder=None))[0].words == ("train.py", *expected)
