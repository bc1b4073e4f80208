"""Tables that name files, so that only one is imported, have every file and nothing else."""

from __future__ import annotations

from importlib import import_module
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
