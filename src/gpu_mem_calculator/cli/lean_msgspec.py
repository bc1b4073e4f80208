"""Imports msgspec and argparse without what they import and a command does not need.

What it needs only for JSON Schemas and for the inspection of types is imported when it is used, by
us or by a program of the user. typing_extensions is what Python has from 3.11 on; of datetime it
needs what is in C; uuid asks platform for the name of the system alone. argparse comes without
gettext.
"""

from __future__ import annotations

import _datetime  # type: ignore[import-not-found]
import os
import sys
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

INSPECT, SCHEMA = "msgspec.inspect", "msgspec._json_schema"


class _Later(ModuleType):
    """A module that is imported when it is first asked for a name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_imported(self.__name__), name)


def _imported(name: str) -> ModuleType:
    from importlib import import_module

    if isinstance(sys.modules.get(name), _Later):
        del sys.modules[name]
    return import_module(name)


def import_msgspec() -> None:
    """Import it, unless it has been."""
    if "msgspec" in sys.modules:
        return
    schemas, system = _Later(SCHEMA), ModuleType("platform")
    for name in ("schema", "schema_components"):
        setattr(schemas, name, _function(name))
    later: dict[str, Any] = {INSPECT: _Later(INSPECT), SCHEMA: schemas}
    during: dict[str, Any] = {"typing_extensions": None, "datetime": _datetime}
    if hasattr(os, "uname"):
        system.system = lambda: os.uname().sysname  # type: ignore[attr-defined]
        during["platform"] = system
    during = {name: one for name, one in during.items() if name not in sys.modules}
    sys.modules |= later | during
    try:
        import msgspec  # noqa: F401
    finally:
        for name in during:
            del sys.modules[name]


def import_argparse() -> None:
    """Import it without gettext, unless it has been: its messages are in English."""
    if "gettext" in sys.modules or "argparse" in sys.modules:
        return
    words = ModuleType("gettext")
    words.gettext = str  # type: ignore[attr-defined]
    words.ngettext = lambda one, many, n: one if n == 1 else many  # type: ignore[attr-defined]
    sys.modules["gettext"] = words
    try:
        import argparse  # noqa: F401
    finally:
        del sys.modules["gettext"]


def _function(name: str) -> Any:
    """A function of the module of schemas, which is imported when it is called."""

    def call(*args: Any, **rest: Any) -> Any:
        return getattr(_imported(SCHEMA), name)(*args, **rest)

    return call
