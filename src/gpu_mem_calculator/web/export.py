"""A run as a file of another tool, or as a run file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..estimates.calculator import full_estimate
from ..report.encode import to_json, to_yaml
from ..runfile.config import RunFile
from ..runfile.read import as_dict
from ..runfile.resolve.resolve import resolve
from ..runfile.resolve.resolved_run import ResolvedRun
from ..runfile.text.errors import InputError, nearest
from ..tools.deepspeed import write as deepspeed
from ..tools.writing.writers import WRITERS, write_run
from .pasted_text import asked

RUN_FILES = {"json": to_json, "yaml": to_yaml}
EXPORTS: tuple[str, ...] = (*RUN_FILES, *(name for name, row in WRITERS.items() if row.page))


def export(body: Any, options: Mapping[str, str]) -> dict[str, Any]:
    """The file's text and usual name; of DeepSpeed's also its data, and the result."""
    name = options.get("format", "").lower()
    if name not in EXPORTS:
        near = nearest(name, EXPORTS)
        raise InputError(f"export format {name!r} is not known{near}; use {', '.join(EXPORTS)}")
    file = asked(body).file
    return {"format": name, **_exported(name, file, resolve(file))}


def _exported(name: str, file: RunFile, resolved: ResolvedRun) -> dict[str, Any]:
    if name in RUN_FILES:
        return {"content": RUN_FILES[name](as_dict(file)), "filename": f"config.{name}"}
    if name == "deepspeed":
        config = deepspeed.write(file, resolved)
        return {
            "content": to_json(config),
            "filename": deepspeed.FILENAME,
            "config": config,
            "memory_result": full_estimate(file).result,
        }
    written = write_run(name, file, resolved)
    return {"content": written.text, "filename": written.filename}
