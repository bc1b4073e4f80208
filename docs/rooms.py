"""Draws the rooms of the package and which of them imports which: docs/rooms.svg.

The order is that of the layers in pyproject.toml, the words are the first line of each room, and a
dot is at least one import in the code. An import against the order would be a dot above the
diagonal; `lint-imports` refuses it.

python docs/rooms.py
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "gpu_mem_calculator"
TARGET = ROOT / "docs" / "rooms.svg"
ROW, TOP, LEFT, STEP = 26, 96, 740, 22
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1c2430; } .soft { fill: #5a6472; }
  .name { font-weight: 600; } .band { fill: #f3f5f8; }
  .dot { fill: #0b6b3a; } .self { fill: #8a94a3; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6eaf0; } .soft { fill: #a3adba; } .band { fill: #1d2530; }
    .dot { fill: #4cc38a; }
  }
"""


def rooms() -> list[str]:
    """The rooms, the lowest first."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = config["tool"]["importlinter"]["contracts"]
    layers: list[str] = next(one["layers"] for one in contracts if one["type"] == "layers")
    return layers[::-1]


@cache
def imports() -> dict[str, set[str]]:
    """For each room the rooms that its code imports, but for types alone."""
    found: dict[str, set[str]] = {room: set() for room in rooms()}
    for room in found:
        for path in (SOURCE / room).rglob("*.py"):
            found[room] |= set(_imported(path)) - {room}
    return found


def _imported(path: Path) -> Iterator[str]:
    """The rooms that a file imports, relative or by the package's name."""
    own = path.relative_to(SOURCE).parts[:-1]
    for node in _nodes(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = [*own[: len(own) - node.level + 1]] if node.level else []
            parts = [*base, *(node.module or "").split(".")]
            if not node.level and parts[0] != SOURCE.name:
                continue
            if parts[0] == SOURCE.name:
                parts = parts[1:]
            parts = [part for part in parts if part]
            yield from [parts[0]] if parts else [one.name for one in node.names]


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All statements but those under `if TYPE_CHECKING`; expressions import nothing."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        match node:
            case ast.If(ast.Name("TYPE_CHECKING")):
                continue
            case ast.stmt() | ast.Module() | ast.ExceptHandler() | ast.match_case():
                yield node
                waiting += ast.iter_child_nodes(node)


def words(room: str) -> str:
    """What a room is, by the first line of its docstring."""
    text = ast.get_docstring(ast.parse((SOURCE / room / "__init__.py").read_text("utf-8"))) or ""
    return text.partition("\n")[0].rstrip(".").partition(";")[0]


def drawing() -> str:
    """The picture: a row and a column for each room, a dot where the row imports the column."""
    order, arrows = rooms(), imports()
    width, height = LEFT + STEP * len(order) + 24, TOP + ROW * len(order) + 16
    label = "Sixteen rooms in order. Each imports rooms above it alone."
    head = f'viewBox="0 0 {width} {height}" role="img" aria-label="{label}"'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {head}>', f"<style>{STYLE}</style>"]
    for column, room in enumerate(order):
        x, y = LEFT + STEP * column, TOP - 12
        turned = f'transform="rotate(-55 {x} {y})"'
        lines.append(f'<text class="soft" x="{x}" y="{y}" {turned}>{room}</text>')
    for row, room in enumerate(order):
        y, shade = TOP + ROW * row, f'width="{width - 16}" height="{ROW}"'
        if row % 2 == 0:
            lines.append(f'<rect class="band" x="8" y="{y - 4}" {shade}/>')
        lines.append(f'<text class="name" x="16" y="{y + 14}">{room}</text>')
        lines.append(f'<text class="soft" x="104" y="{y + 14}">{escape(words(room))}</text>')
        for column, other in enumerate(order):
            kind, size = ("self", 2) if other == room else ("dot", 5)
            if other == room or other in arrows[room]:
                place = f'cx="{LEFT + STEP * column}" cy="{y + 9}"'
                lines.append(f'<circle class="{kind}" {place} r="{size}"/>')
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    TARGET.write_text(drawing(), encoding="utf-8")
