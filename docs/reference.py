"""Writes run-file.md: every key of a run file, with its default for each engine.

python docs/reference.py
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_mem_calculator.core.keys import DEFAULT, MEANING
from gpu_mem_calculator.core.models import LoraConfig
from gpu_mem_calculator.core.runfile import SECTIONS, key_types, rule
from gpu_mem_calculator.engines import ALIASES, engines
from gpu_mem_calculator.run.engine import Engine
from gpu_mem_calculator.serving import ALIASES as SERVERS
from gpu_mem_calculator.serving import servers

TARGET = Path(__file__).with_name("run-file.md")


def shown(value: Any) -> str:
    """A default as it is written in JSON."""
    return (
        str(value).lower() if isinstance(value, bool) else "unset" if value is None else f"{value}"
    )


def said(kind: Any) -> str:
    """What a key may be; a list of numbers is that."""
    return rule(kind) or "a list of numbers"


def section_table(name: str) -> list[str]:
    """Key, what it may be, its default and what it means."""
    lines = ["| key | may be | default | |", "|---|---|---|---|"]
    for key, kind in key_types(SECTIONS[name]).items():
        path = f"{name}.{key}"
        default = shown(DEFAULT[path]) if path in DEFAULT else ""
        lines.append(f"| `{key}` | {said(kind)} | {default} | {MEANING[path]} |")
    return lines


def option_table(section: str, first: str, every: Mapping[str, Engine], own: str) -> list[str]:
    """Each key of a section but `own`, and its default in the engines that have it."""
    lines = [f"| {first} | may be | " + " | ".join(f"`{n}`" for n in every) + " | |"]
    lines.append("|---|---|" + "---|" * len(every) + "---|")
    for key, kind in key_types(SECTIONS[section]).items():
        cells = [shown(e.options[key]) if key in e.options else "" for e in every.values()]
        if key != own:
            defaults = " | ".join(cells)
            lines.append(f"| `{key}` | {said(kind)} | {defaults} | {MEANING[f'{section}.{key}']} |")
    return lines


def lora_table() -> list[str]:
    """The keys of training.lora."""
    lines = ["| key | may be | default | |", "|---|---|---|---|"]
    plain = LoraConfig()
    for key, kind in key_types(LoraConfig).items():
        meaning = MEANING[f"training.lora.{key}"]
        lines.append(f"| `{key}` | {said(kind)} | {shown(getattr(plain, key))} | {meaning} |")
    return lines


def page() -> str:
    """The whole page."""
    spellings = ", ".join(f"`{a}` = `{n}`" for a, n in ALIASES.items())
    parts = [
        "# The run file",
        "",
        "JSON, YAML and TOML read the same. A key that is left out takes the default below, or",
        "that of the framework at the version that is modelled; an unknown key, a value that is",
        "out of range, or an option that the engine does not have is refused with a sentence.",
        "`gpu-mem-calc schema` prints a JSON Schema for editors. This page is written by",
        "`docs/reference.py`.",
        "",
        "## model",
        "",
        *section_table("model"),
        "",
        "## training",
        "",
        *section_table("training"),
        "",
        "### training.lora",
        "",
        *lora_table(),
        "",
        "## parallelism",
        "",
        *section_table("parallelism"),
        "",
        "## engine",
        "",
        f"`type` is one of {', '.join(f'`{n}`' for n in engines())} (default `pytorch_ddp`);",
        f"other spellings: {spellings}.",
        "Each option's default, in the engines that have it (an empty cell: refused):",
        "",
        *option_table("engine", "option", engines(), "type"),
        "",
        "## inference",
        "",
        "Instead of training, parallelism and engine: see [inference](inference.md). `engine` is",
        f"one of {', '.join(f'`{n}`' for n in servers())} (default `transformers`); other",
        f"spellings: {', '.join(f'`{a}` = `{n}`' for a, n in SERVERS.items())}.",
        "Each key's default, in the engines that have it (an empty cell: refused):",
        "",
        *option_table("inference", "key", servers(), "engine"),
        "",
        "## hardware",
        "",
        *section_table("hardware"),
        "",
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
