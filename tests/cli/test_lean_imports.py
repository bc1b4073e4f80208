"""The modules of this package are found quickly, and are the same as Python finds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from py_compile import PycInvalidationMode, compile
from typing import Any

import pytest

from gpu_mem_calculator.cli.lean_imports import OwnFinder, OwnLoader

LEAN = """
from gpu_mem_calculator.cli.lean_imports import find_own_modules
find_own_modules()
"""
SHOWN = """
import importlib, inspect, sys
from importlib.resources import files
for name in ("ledger.num", "training", "training.engines.fsdp", "cli.screen", "catalog"):
    module = importlib.import_module(f"gpu_mem_calculator.{name}")
    spec = module.__spec__
    print(module.__file__, module.__cached__, module.__package__, getattr(module, "__path__", None))
    print(spec.name, spec.origin, spec.cached, spec.has_location, spec.parent)
    print(spec.submodule_search_locations, len(inspect.getsource(module)))
print(files("gpu_mem_calculator").joinpath("py.typed").is_file())
try:
    import gpu_mem_calculator.no_such_module
except ModuleNotFoundError as error:
    print(error, error.name)
"""


def shown(code: str, *options: str, **variables: str) -> str:
    """What a new process prints."""
    env = {**os.environ, **variables}
    words = [sys.executable, *options, "-c", code]
    return subprocess.run(words, capture_output=True, text=True, check=True, env=env).stdout


def test_modules_are_the_same() -> None:
    """Where they lie, and what is known of them."""
    assert shown(LEAN + SHOWN) == shown(SHOWN) != ""


def test_own_modules_are_found_so() -> None:
    """Those of others are not."""
    code = "import colorsys, gpu_mem_calculator.ledger.num as num\n"
    code += "print(*(type(one.__loader__).__name__ for one in (num, colorsys)))"
    assert shown(LEAN + code) == "OwnLoader SourceFileLoader\n"


@pytest.mark.parametrize("elsewhere", [True, False])
def test_compiled_modules_elsewhere_are_found_by_python(elsewhere: bool, tmp_path: Path) -> None:
    """Another folder is Python's to know; without asserts, compiled modules have another name."""
    options = ("-X", f"pycache_prefix={tmp_path}") if elsewhere else ("-B", "-O")
    assert shown(LEAN + SHOWN, *options) == shown(SHOWN, *options)
    code = (
        LEAN + "import sys; print(any(type(one).__name__ == 'OwnFinder' for one in sys.meta_path))"
    )
    assert shown(code, *options) == f"{not elsewhere}\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A module, not compiled yet."""
    path = tmp_path / "one.py"
    path.write_text("VALUE = 1\n")
    return path


def value(source: Path) -> object:
    """What the module of a file has."""
    compiled = source.with_name("one.pyc")
    names: dict[str, Any] = {}
    exec(OwnLoader("one", str(source), str(compiled), source.stat()).get_code("one"), names)  # type: ignore[arg-type]
    return names["VALUE"]


def test_a_source_that_has_changed_is_compiled_anew(source: Path) -> None:
    """By its time or its size, as Python does; so is one whose compiled form is cut short."""
    assert value(source) == 1
    compile(str(source), str(source.with_name("one.pyc")))
    source.write_text("VALUE = 23\n")
    assert value(source) == 23
    source.with_name("one.pyc").write_bytes(b"cut")
    assert value(source) == 23


def test_a_compiled_module_may_say_that_its_source_does_not_matter(source: Path) -> None:
    """As in an image, whose layers change the times of files."""
    for mode, expected in ((PycInvalidationMode.UNCHECKED_HASH, 1), ("checked", 23)):
        source.write_text("VALUE = 1\n")
        how = PycInvalidationMode.CHECKED_HASH if mode == "checked" else mode
        compile(str(source), str(source.with_name("one.pyc")), invalidation_mode=how)
        source.write_text("VALUE = 23\n")
        assert value(source) == expected


def test_a_module_without_a_source_is_not_found() -> None:
    """Python looks for it then."""
    finder = OwnFinder(".pyc")
    assert finder.find_spec("gpu_mem_calculator.none", ["/nowhere"]) is None
    assert finder.find_spec("json.decoder", ["/nowhere"]) is None
    assert finder.find_spec("gpu_mem_calculator") is None
