"""Changes a library when a script imports it, so that nothing is imported without need."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from typing import Any

Change = Callable[[Any], None]


class _ChangedLoader(Loader):
    """Loads a module, and changes it."""

    def __init__(self, loader: Any, change: Change) -> None:
        self.loader, self.change = loader, change

    def create_module(self, spec: ModuleSpec) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__loader__ = module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        self.change(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


class _WatchingFinder(MetaPathFinder):
    """Finds the modules that are changed."""

    def __init__(self, changes: Mapping[str, Change]) -> None:
        self.changes = dict(changes)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        change = self.changes.pop(name, None)
        if change is None:
            return None
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _ChangedLoader(spec.loader, change)
        return spec


@contextmanager
def changed_on_import(changes: Mapping[str, Change]) -> Iterator[None]:
    """Change modules at their first import; those that are imported already, at once."""
    later = {}
    for name, change in changes.items():
        if name in sys.modules:
            change(sys.modules[name])
        else:
            later[name] = change
    finder = _WatchingFinder(later)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
