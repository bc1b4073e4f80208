"""Writes the table of values in deploy/README.md from the comments of the chart's values.yaml.

python docs/chart_values.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

VALUES = Path(__file__).parents[1] / "deploy/helm/gpu-mem-calculator/values.yaml"
PAGE = Path(__file__).parent / "deploy" / "README.md"
SECTION = re.compile(r"# --- (.+?) -+$")
KEY = re.compile(r"( *)([A-Za-z_]+):(.*)$")


def keys(text: str) -> Iterator[tuple[str, str, str]]:
    """Section, path and comment of each key; what is in a list has none."""
    section, comment, above, listed = "", [], [""], 999
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if line.lstrip().startswith("- "):
            listed = indent
        if indent >= listed:
            continue
        listed = 999
        if heading := SECTION.match(line):
            section = heading[1]
        elif line.lstrip().startswith("#"):
            comment.append(line.strip(" #"))
        elif key := KEY.match(line):
            above = [*above[: len(key[1]) // 2 + 1], key[2]]
            yield section, ".".join(above[1:]), " ".join(comment)
            comment = []


def shown(value: Any) -> str:
    """A default as one would write it."""
    if value is None or value == "":
        return ""
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value)}`"


def table(text: str) -> str:
    """Every value with its default and what it is, a table for each section."""
    rows: list[str] = []
    last = None
    values = yaml.safe_load(text)
    for section, path, comment in keys(text):
        value: Any = values
        for part in path.split("."):
            value = value[part]
        if isinstance(value, dict) and value and not comment:
            continue
        if section != last:
            rows += ["", f"**{section}**", ""] if section else []
            rows += ["| value | default | |", "|---|---|---|"]
            last = section
        default = "" if isinstance(value, dict) and value else shown(value)
        rows.append(f"| `{path}` | {default} | {comment.replace('|', chr(92) + '|')} |")
    return "\n".join(rows)


def page() -> str:
    """deploy/README.md as it should be."""
    made = f"<!-- values -->\n{table(VALUES.read_text(encoding='utf-8'))}\n<!-- end -->"
    text = PAGE.read_text(encoding="utf-8")
    return re.sub(r"<!-- values -->.*?<!-- end -->", lambda _: made, text, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
