"""Writes the files of `catalog/curves/`: `python -m tools.curves WHEEL [FOLDER]`; needs pyarrow."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from msgspec import json

from .attention import attention_file
from .collectives import collectives_file
from .matmul import matmul_file
from .wheel import CARDS

FOLDER = Path(__file__).parents[2] / "src/gpu_mem_calculator/catalog/curves"
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


def main(arguments: list[str]) -> None:
    """Write every file."""
    wheel = Path(arguments[0])
    folder = Path(arguments[1]) if len(arguments) > 1 else FOLDER
    for kind, build in KINDS.items():
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for card in CARDS:
            (folder / kind / f"{card}.json").write_text(text(build(wheel, card)), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
