"""The fields of the JSON answers: within a version they are only added.

`json_fields.txt` has a line for each field. `python -m tests.golden.test_json_fields` adds new
fields; it never takes one out.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.cli.main import main

STORED = Path(__file__).parent / "json_fields.txt"
COMMANDS = {
    "training": "quick gpt2-xl --gpu 4090 --seq-len 1024 --batch-size 8 --format json",
    "serving": "infer llama3.1-8b --gpu h100-80gb-sxm --format json",
    "plan": "plan gpt2 --gpus 2 --gpu h100-80gb-sxm --seq-len 512 --global-batch 4 --engine ddp "
    "--format json",
}
# Objects whose keys are the user's, or kinds of memory.
FREE = (
    "run",
    "versions",
    "bytes",
    "settings",
    "change",
    "axes",
    "model",
    "hardware",
    "fix",
    "vary",
)


def fields(value: Any, path: str = "") -> Iterator[str]:
    """The paths of all fields of a JSON value; of lists, those of their elements."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{path}{key}"
            if key not in FREE:
                yield from fields(inner, f"{path}{key}.")
    elif isinstance(value, list):
        for inner in value:
            yield from fields(inner, path)


def answered(kind: str) -> set[str]:
    """The fields of an answer, each with its kind in front."""
    out = StringIO()
    with redirect_stdout(out):
        assert main(shlex.split(COMMANDS[kind])) == 0
    return {f"{kind}: {field}" for field in fields(json.loads(out.getvalue()))}


@pytest.mark.parametrize("kind", COMMANDS)
def test_no_field_is_lost_or_unlisted(kind: str) -> None:
    """A field that is gone breaks readers; a new one is stored."""
    stored = {line for line in STORED.read_text().splitlines() if line.startswith(f"{kind}: ")}
    assert answered(kind) == stored


def test_the_version_is_in_every_answer() -> None:
    """It changes where a field is renamed or removed."""
    assert {f"{kind}: version" for kind in COMMANDS} <= set(STORED.read_text().splitlines())


if __name__ == "__main__":
    lines = set(STORED.read_text().splitlines()) if STORED.exists() else set()
    STORED.write_text("\n".join(sorted(lines.union(*map(answered, COMMANDS)))) + "\n")
    sys.exit(0)
