"""Tables that name files, so that only one is imported, have every file and nothing else."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules

from gpu_mem_calculator import serving
from gpu_mem_calculator.models import families
from gpu_mem_calculator.training import engines


def test_the_table_of_families_has_the_model_types_of_every_file() -> None:
    """A family file is found by the table of its package, which repeats the file's own names."""
    modules = [module.name for module in iter_modules(families.__path__)]
    tables = {
        name: getattr(import_module(f"{families.__name__}.{name}"), "FAMILIES", None)
        for name in sorted(modules)
    }
    exposed = {name: set(table) for name, table in tables.items() if table}
    named = {name: set(words.split()) for name, words in families.FILES.items()}
    assert exposed == named, "models/families/__init__.py: FILES repeats each FAMILIES"


def test_no_model_type_is_read_by_two_files() -> None:
    """The first file of the table would hide the other."""
    names = " ".join(families.FILES.values()).split()
    assert len(names) == len(set(names))


def test_the_names_of_engines_and_servers_are_their_folders() -> None:
    """A new folder is an engine: it needs an `engine.py` that exposes `ENGINE`."""
    for package, names in (engines, engines.engine_names()), (serving, serving.server_names()):
        folder = Path(package.__path__[0])
        assert tuple(sorted(path.parent.name for path in folder.glob("*/engine.py"))) == names


def test_a_command_imports_neither_other_engines_nor_what_only_files_need() -> None:
    """What a command does not use costs nothing at its start."""
    imported = _imported("quick", "350M")
    unused = {"tempfile", "pathlib", "urllib.parse", "tomllib", "threading", "fractions"}
    ours = {"catalog.hub.sources", "catalog.hub.checkpoint", "training.generation.instants"}
    ours |= {"runfile.resolve.resolve_inference"}
    others = [one for one in engines.engine_names() if one != engines.DEFAULT]
    ours |= {f"training.engines.{one}.engine" for one in others}
    assert "gpu_mem_calculator.training.engines.pytorch_ddp.engine" in imported
    assert all(find_spec(f"gpu_mem_calculator.{name}") for name in ours)
    assert not imported & (unused | {f"gpu_mem_calculator.{name}" for name in ours})


def test_the_version_is_printed_without_typing_or_msgspec() -> None:
    """`--version` takes little more than bare Python."""
    assert not _imported("--version") & {"typing", "msgspec", "argparse", "json", "re"}


def _imported(*words: str) -> set[str]:
    """The modules that a command imports, beside those that Python's start imports."""
    code = (
        "import sys; before = set(sys.modules); from gpu_mem_calculator.cli.main import main; "
        f"main({list(words)}); print(*set(sys.modules) - before, file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stderr.split())
