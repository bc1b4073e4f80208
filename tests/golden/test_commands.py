"""What commands print on small models, word by word, so that a changed report is a readable diff.

`commands/*.txt` are transcripts: a line `$ gpu-mem-calc ...` and below it what it prints. Another
command is another such line; `python -m tests.golden.test_commands` writes what is below it anew.
Of a page or a picture there is its text, and a checksum of all of it.
"""

from __future__ import annotations

import html
import os
import re
import shlex
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from unittest.mock import patch
from zlib import crc32

import pytest

from gpu_mem_calculator.cli.main import main

HERE = Path(__file__).parent / "commands"
PROMPT = "$ gpu-mem-calc "
TERMINAL = {"COLUMNS": "80", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"}


def recorded(path: Path) -> dict[str, str]:
    """The commands of a transcript, each with what it prints."""
    blocks = ("\n" + path.read_text(encoding="utf-8")).split(f"\n{PROMPT}")[1:]
    return {words: text.rstrip("\n") for words, _, text in (b.partition("\n") for b in blocks)}


def printed(words: str) -> str:
    """What a command prints, and its exit code where it is not 0."""
    out, code = StringIO(), 0
    with chdir(HERE), patch.dict(os.environ, TERMINAL), redirect_stdout(out), redirect_stderr(out):
        code = main(shlex.split(words))
    text = out.getvalue()
    if text.lstrip().startswith("<"):
        text = page_text(text)
    lines = [line.rstrip() for line in text.splitlines()]
    return "\n".join([*lines, f"exit code {code}"] if code else lines).rstrip("\n")


def page_text(page: str) -> str:
    """The words of a page, each element on a line, and a checksum of its markup without style,
    code and version."""
    body = re.sub(r"<(style|script)\b.*?</\1>", "", page, flags=re.DOTALL)
    body = re.sub(r"(gpu-mem-calculator) \d[\d.]*\d", r"\1", body)
    words = html.unescape(re.sub(r"<[^>]*>", "\n", body))
    lines = [stripped for line in words.splitlines() if (stripped := " ".join(line.split()))]
    return "\n".join([*lines, f"checksum {crc32(body.encode()):08x}"])


FILES = sorted(HERE.glob("*.txt"))
CASES = {(path.stem, words): text for path in FILES for words, text in recorded(path).items()}


@pytest.mark.parametrize(("file", "words"), CASES, ids=lambda part: part.replace(" ", "_"))
def test_a_command_prints_what_it_printed(file: str, words: str) -> None:
    """A report that changes shows here, line by line."""
    assert printed(words) == CASES[file, words]


if __name__ == "__main__":
    for transcript in FILES:
        blocks = [f"{PROMPT}{words}\n{printed(words)}\n" for words in recorded(transcript)]
        transcript.write_text("\n".join(blocks), encoding="utf-8")
    sys.exit(0)
