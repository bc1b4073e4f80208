"""Commands that people really ran, and how `gpu-mem-calc check` ends for each.

- `threads.jsonl`: from 280 public threads about memory, those that were found with a command; `-2`
  after a number is a second command of the same thread
- `neighbours.jsonl`: from other threads about memory that the same look-ups showed
- `repositories.jsonl`: 60 drawn at random (seed 34) from public repositories, of 2023 to 2025. The
  repositories are those that a search of public code named for 28 phrases such as `vllm serve`,
  `accelerate launch`, `swift sft`, `train_bash.py`; the draw is over every file of theirs that has
  such a command, spread over the tools. Files were dated by their last change.

Of each command: its address, its date, the releases that are said (a month where the newest of
that month is meant), the files beside it, and the card, the likeliest where none is said. `cut`
where the thread was not seen to its end, `pasted` where its text is no command line but what would
be pasted into `check -` or the page. Secrets and names are hidden.

`python -m tests.tools.corpora.ran` prints what is refused, and `--store` writes how each ends now
into `ran.json`, from which docs/reliability.py makes its table.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from gpu_mem_calculator.cli.main import main
from tests.tools.corpora.score import FOLDER, rows

ACCEPTED, NOT_HERE, UNKNOWN, OTHER = "accepted", "not here", "unknown", "other"
NAMES = ("threads", "neighbours", "repositories")
STORED = FOLDER / "ran.json"
REFUSED = FOLDER / "refused.json"  # why a refusal is right, where a person judged that it is
LONGEST = 150  # characters of a reason
# What a refusal says where a name, a value or a tool is not known.
SAID = re.compile(
    r"is not an option|is not a known|is not a key|starts no tool|starts no program|no file of a "
    r"tool|is not modelled; did you mean|is not an argument|must be one of|unknown"
)
# And where the model, or a file that the command names, is not on this machine.
MISSING = re.compile(
    r"model\.name=.*(not on this machine|neither a preset|not read from the hub|is a variable|"
    r"is a word after|is what another command prints)|no such file|"
    r"nothing that was read names the model|names no model"
)
VERDICT = re.compile(r"^(fits|does not fit|cannot tell|will not start)\b|\bof [\d.]+ GiB", re.M)
FIGURES = re.compile(r"GiB per GPU|GiB needed|of [\d.]+ GiB|^total +at ", re.M)
MONTH = re.compile(r"20\d\d-\d\d")
# Tools whose own release --at does not take, because a run file has another tool in their place.
TRANSLATED = ("llamafactory", "verl")
PACKAGES = {"swift": "ms-swift", "llamacpp": "llama-cpp"}  # of tools with another name
# A model on every machine, in the place of one that is not here.
MODEL_NAMED = ("--set", "model.name=qwen2.5-7b")
NEEDS_SHELL = re.compile(r"[\n$|&;<>`'\"\\]")


def outcome(row: Mapping[str, Any], *options: str) -> tuple[str, str]:
    """How `check` ends: a verdict of any kind, or why not."""
    code, text = checked(row, *options)
    if VERDICT.search(text) and FIGURES.search(text):
        return ACCEPTED, text
    kind = UNKNOWN if SAID.search(text) else NOT_HERE if MISSING.search(text) else OTHER
    return kind, text or f"exit code {code}"


def at_releases(row: Mapping[str, Any]) -> list[str]:
    """The options that name the releases of a row: of its tool, and else those of its month."""
    said = row["releases"]
    named = [
        f"{PACKAGES.get(name, name)}={said[name]}"
        for name in (row["tool"], "transformers")
        if name in said and name not in TRANSLATED and not MONTH.fullmatch(said[name])
    ]
    return ["--at", ",".join([row["date"], *named])]


def checked(row: Mapping[str, Any], *options: str) -> tuple[int, str]:
    """The exit code of `check` and all that it prints, in a folder with the row's files."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        for path, text in row.get("files", {}).items():
            place = Path(name, path.lstrip("/"))
            if Path(name).resolve() in place.resolve().parents:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(text, encoding="utf-8")
        words, pasted = [row["command"]], sys.stdin
        if row.get("pasted"):
            words = ["-"]
            sys.stdin = io.TextIOWrapper(io.BytesIO(row["command"].encode()))
        elif NEEDS_SHELL.search(row["command"]):
            Path(name, "command.sh").write_text(row["command"], encoding="utf-8")
            words = ["command.sh"]
        else:
            words = shlex.split(row["command"])
        card = ["--gpu", row["gpu"], *(["--gpus", str(row["gpus"])] if "gpus" in row else [])]
        said = io.StringIO()
        os.chdir(name)
        alone = mock.patch.dict(os.environ, {"PATH": ""})  # no program is installed here
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), alone:
                code = main(["check", *card, *options, *words])
        except SystemExit as stop:
            code = int(stop.code or 0)
        finally:
            sys.stdin = pasted
            os.chdir(before)
    return code, said.getvalue()


def why(text: str) -> str:
    """The first sentence of a refusal, for a table's cell."""
    said = [line for line in text.splitlines() if line.startswith("gpu-mem-calc: ")]
    line = said[0].removeprefix("gpu-mem-calc: ").removeprefix("cannot tell: ") if said else ""
    return line.replace("|", "\\|")[:LONGEST]


def with_model(row: Mapping[str, Any], kind: str) -> str:
    """How `check` ends where a model that is not here is named with --set."""
    return outcome(row, *MODEL_NAMED)[0] if kind == NOT_HERE else kind


def ended(name: str) -> list[dict[str, str]]:
    """How each command of a file ends now, beside how it ended at first."""
    stored = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {}
    first = {row["id"]: row["first"] for row in stored.get(name, ())}
    found = []
    for row in rows(name):
        kind, text = outcome(row)
        said = {"why": why(text)} if kind != ACCEPTED else {}
        begun = first.get(row["id"], kind)
        then = outcome(row, *at_releases(row))[0]
        ends = {"first": begun, "now": kind, "at": then, "named": with_model(row, kind)}
        found.append({"id": row["id"], **ends, **said})
        if kind != ACCEPTED:
            print(f"\n== {row['id']} ({row['tool']}, {row['date']}): {kind}\n{text.strip()[:900]}")
    counts = Counter(row["now"] for row in found)
    print(f"\n{name}: {dict(counts)}")
    return found


if __name__ == "__main__":
    every = {name: ended(name) for name in NAMES}
    if "--store" in sys.argv:
        STORED.write_text(json.dumps(every, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
