"""Public configurations of other tools: how many are read, and how many are answered in bytes.

`python -m tests.tools.corpora.score llamafactory` prints the table and what stands in the way.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.deepspeed.detect import is_deepspeed
from gpu_mem_calculator.tools.deepspeed.read import run_file
from gpu_mem_calculator.tools.launchers.launch import read_launch
from gpu_mem_calculator.tools.manifests.read import read_manifest
from gpu_mem_calculator.tools.reading.named_files import NamedFiles
from gpu_mem_calculator.tools.reading.reading import Reading
from gpu_mem_calculator.tools.reading.tools import file_format, read_command, read_data
from gpu_mem_calculator.tools.shell.read import main_command, read_script

FOLDER = Path(__file__).parent
CARD = {"gpu": "h200"}  # the largest; a run that does not fit is answered, too
MODEL = "llama3.2-1b"  # beside DeepSpeed's JSON, which names none
ANSWERED, LIMITED, REFUSED, UNREAD = "answered", "with a limit", "refused", "not read"
IN_FULL = (ANSWERED, LIMITED, REFUSED)


def rows(name: str) -> list[dict[str, Any]]:
    """The configurations of a tool."""
    text = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def read_row(row: dict[str, Any]) -> Reading:
    """What a configuration says, by the reader of its tool."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, data in row.get("files", {}).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            text = data if isinstance(data, str) else json.dumps(data)
            (folder / path).write_text(text, encoding="utf-8")
        files = NamedFiles(folder)
        if "data" in row:
            found = read_data(row["data"], files)
            if found is None:
                raise InputError("no tool's keys are in it")
            return found
        if "script" in row:
            commands = read_script(row["script"], files, row.get("arguments", ()))
            return read_command(main_command(commands))
        return read_command(read_launch(row["words"], files, row.get("environment")))


def readings(row: dict[str, Any]) -> list[Reading]:
    """What a configuration says; a manifest has a reading for each of its containers."""
    if "documents" not in row:
        return [read_row(row)]
    found = read_manifest(row["documents"], NamedFiles(None))
    return [read_command(one) for one in found]


def outcome(row: dict[str, Any]) -> tuple[str, str]:
    """The outcome of a configuration, and the sentence that says why; of a manifest, the worst
    outcome of its containers.
    """
    data = row.get("data")
    if file_format(data) is None and is_deepspeed(data):
        return _deepspeed_outcome(row["data"])
    try:
        found = readings(row)
    except InputError as error:
        return UNREAD, str(error)
    order = (ANSWERED, LIMITED, REFUSED, UNREAD)
    return max(map(_outcome, found), key=lambda one: order.index(one[0]))


def _deepspeed_outcome(data: dict[str, Any]) -> tuple[str, str]:
    """The outcome of DeepSpeed's JSON, with a model beside it."""
    try:
        found = run_file(data, model=MODEL)
        full_estimate({**found.data, "hardware": {**found.data["hardware"], **CARD}}, replay=False)
    except InputError as error:
        kind = UNREAD if "is not a key" in str(error) else REFUSED
        return kind, str(error)
    return ANSWERED, ""


def _outcome(reading: Reading) -> tuple[str, str]:
    if reading.problems:
        return UNREAD, "; ".join(reading.problems)
    hardware = {**CARD, **reading.run.get("hardware", {})}
    try:
        full_estimate(reading.run | {"hardware": hardware}, replay=False)
    except InputError as error:
        return REFUSED, str(error)
    return (LIMITED, "; ".join(map(str, reading.limits))) if reading.limits else (ANSWERED, "")


def main() -> None:
    """Print the table of a corpus."""
    found = [(*outcome(row), row["source"]) for row in rows(sys.argv[1])]
    for kind, why, source in sorted(found):
        print(f"{kind:13}{source.partition(':')[2]:70} {why[:200]}")
    print(len(found), dict(Counter(kind for kind, _, _ in found)))


if __name__ == "__main__":
    main()
