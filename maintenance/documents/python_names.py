"""The page of the names that a program imports, from their signatures and docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import gpu_mem_calculator

INTRODUCTION = """# Python

`from gpu_mem_calculator import estimate`: the names below are public, and stay. Results are
objects whose fields have the names of `--format json`. A mistake in a run raises `InputError`,
whose `problems` are sentences.
"""


def page() -> str:
    """The page."""
    names = [one for one in gpu_mem_calculator.__all__ if not one.startswith("_")]
    return "\n".join([INTRODUCTION, *(line for name in names for line in _told(name))])


def _told(name: str) -> Iterator[str]:
    found = getattr(gpu_mem_calculator, name)
    yield from (f"## {name}", "", "```python", f"{name}{inspect.signature(found)}", "```", "")
    yield from (inspect.getdoc(found) or "", "")
    if inspect.isclass(found):
        for method, value in vars(found).items():
            if inspect.isfunction(value) and not method.startswith("_"):
                yield from (f"### {name}.{method}", "", "```python")
                yield from (f"{method}{inspect.signature(value)}", "```", "")
                yield from (inspect.getdoc(value) or "", "")
