"""Triton where it is not installed: libraries import it, and their kernels do nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

NAME = "triton"
VERSION = "3.6.0"  # the one that torch 2.11 to 2.13 install with CUDA


class Name:
    """A name of Triton's language: it is read while a kernel is defined, and never run."""

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Another name."""
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, _: Any) -> Any:
        return self


class Kernel:
    """A kernel whose launch does nothing: its wrapper has allocated what it writes."""

    def __init__(self, function: Any) -> None:
        self.fn, self.__name__ = function, getattr(function, "__name__", "kernel")

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return self

    def __call__(self, *_: Any, **__: Any) -> None:
        """A launch."""

    run = warmup = __call__


def _jit(function: Any = None, **_: Any) -> Any:
    return Kernel if function is None else Kernel(function)


def _around(*_: Any, **__: Any) -> Any:
    """A decorator that leaves the kernel as it is."""
    return lambda kernel: kernel


def _next_power_of_2(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()


NAMES: dict[str, dict[str, Any]] = {
    "triton": {
        "__version__": VERSION,
        "jit": _jit,
        "autotune": _around,
        "heuristics": _around,
        "cdiv": lambda number, by: -(-number // by),
        "next_power_of_2": _next_power_of_2,
    },
    "triton.language": {"dtype": type("dtype", (), {})},  # inductor asks for the type itself
    "triton.runtime": {},
    "triton.runtime.jit": {"JITFunction": Kernel},
    "triton.runtime.autotuner": {"Autotuner": Kernel, "Heuristics": Kernel},
}
"""Names that are more than read, by module."""


class _TritonLoader(Loader):
    """Makes the modules: every name that Triton's have is there."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        name, nothing = module.__name__, Name()

        def get(attribute: str) -> Any:
            if attribute.startswith("__"):
                raise AttributeError(attribute)
            inner = f"{name}.{attribute}"
            return import_module(inner) if inner in NAMES else nothing

        vars(module).update(NAMES.get(name, {}), __getattr__=get, __path__=[])


class _TritonFinder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        if name != NAME and not name.startswith(f"{NAME}."):
            return None
        return ModuleSpec(name, _TritonLoader(), is_package=True)


@contextmanager
def importable_triton() -> Iterator[None]:
    """Libraries can import Triton; nothing changes where it is installed."""
    if find_spec(NAME) is not None:
        yield
        return
    finder = _TritonFinder()
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [one for one in sys.modules if one.partition(".")[0] == NAME]:
            del sys.modules[name]
