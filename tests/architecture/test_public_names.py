"""The public names: sorted, complete, and each one loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gpu_mem_calculator


def test_all_is_sorted_and_every_name_loads() -> None:
    """`__all__` lists what can be imported, in order."""
    names = gpu_mem_calculator.__all__
    assert list(names) == sorted(names)
    assert all(getattr(gpu_mem_calculator, name) is not None for name in names)


def test_names_are_listed_before_they_are_loaded() -> None:
    """As a shell completes them; and type checkers find the types."""
    script = "import gpu_mem_calculator as g; print(sorted({*g.__all__} - {*dir(g)}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "[]\n"
    assert Path(gpu_mem_calculator.__file__).with_name("py.typed").is_file()


def test_the_version_is_the_packages_own() -> None:
    """The version in the code is the one that is installed."""
    from importlib.metadata import version

    assert gpu_mem_calculator.__version__ == version("gpu-mem-calculator")
