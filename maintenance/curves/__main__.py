"""Writes the files of `catalog/curves/`, and rows for a test of the lookups; needs pyarrow.

python -m maintenance.curves WHEEL [FOLDER]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import json

from .attention import attention_file
from .collectives import collectives_file
from .matmul import matmul_file
from .samples import samples
from .wheel import CARDS

FOLDER = Path(__file__).parents[2] / "src/gpu_mem_calculator/catalog/curves"
SAMPLES = Path(__file__).parents[2] / "tests/timing/curves/rows.json"
KINDS = {"matmul": matmul_file, "attention": attention_file, "collectives": collectives_file}


def text(content: dict[str, Any]) -> str:
    """A file's JSON: a line for each key, and for each curve."""
    lines = [f"{_json(key)}:{_value(value)}" for key, value in content.items()]
    return "{" + ",\n".join(lines) + "}\n"


def _value(value: Any) -> str:
    if not isinstance(value, dict):
        return _json(value)
    return "{\n" + ",\n".join(f"{_json(key)}:{_json(one)}" for key, one in value.items()) + "}"


def _json(value: Any) -> str:
    return json.encode(value).decode()


def files(wheel: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each file's path within the folder, and its content."""
    for kind, build in KINDS.items():
        for card in CARDS:
            yield f"{kind}/{card}.json", build(wheel, card)


def main(arguments: list[str]) -> None:
    """Write every file."""
    wheel = Path(arguments[0])
    folder = Path(arguments[1]) if len(arguments) > 1 else FOLDER
    for path, content in files(wheel):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text(content), "utf-8")
    SAMPLES.write_text(text(samples(wheel)), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
