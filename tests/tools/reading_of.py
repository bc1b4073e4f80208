"""Reads a command line as `gpu-mem-calc check` does."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from gpu_mem_calculator.tools.launchers.launch import read_launch
from gpu_mem_calculator.tools.read import Door, read_all
from gpu_mem_calculator.tools.reading.named_files import NamedFiles
from gpu_mem_calculator.tools.reading.reading import Reading
from gpu_mem_calculator.tools.reading.tools import read_command


def reading_of(line: str, folder: Path | None = None) -> Reading:
    """What a command line means; without a folder no file may be opened."""
    return read_command(read_launch(shlex.split(line), NamedFiles(folder)))


def readings_of(source: Any, folder: Path | None = None) -> list[Reading]:
    """What a text or words mean; without a folder no file may be opened."""
    found = read_all(source, Door(folder=None if folder is None else str(folder)))
    return [one.reading for one in found if one.reading is not None]
