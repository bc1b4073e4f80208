"""Write the table of choices in planner.md from the planner's axes."""

from __future__ import annotations

import re
from pathlib import Path

from gpu_mem_calculator.advice.planner.training.axes import BATCH, KEYS, engine_axes
from gpu_mem_calculator.training.engines import engines

PAGE = Path(__file__).with_name("planner.md")


def table() -> str:
    """A row for each engine: its sizes and its choices."""
    rows = ["| engine | sizes | choices |", "|---|---|---|"]
    for name, one in engines().items():
        axes = engine_axes(name)
        sizes = ", ".join(f"`{KEYS[axis].rpartition('.')[2]}`" for axis in (*axes.sizes, BATCH))
        choices = "; ".join(
            f"`{key}`: {', '.join(f'`{str(value).lower()}`' for value in values)}"
            for key, values in {**axes.choices, **axes.of_experts}.items()
        )
        rows.append(f"| {one.title} | {sizes} | {choices} |")
    return "\n".join(rows)


def page() -> str:
    """The page with its table written anew."""
    text = PAGE.read_text(encoding="utf-8")
    new = f"<!-- choices -->\n{table()}\n<!-- end -->"
    return re.sub(r"<!-- choices -->.*?<!-- end -->", lambda _: new, text, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
