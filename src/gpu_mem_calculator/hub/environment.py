"""What huggingface_hub's own environment variables say here, too (its docs, "Environment
variables"): its cache and its token are read, never written.
"""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

from .access import access
from .bounds import HubError

TRUE = ("1", "ON", "YES", "TRUE")


class Token(Struct, frozen=True):
    """What opens private models, and where it is from; empty where there is none."""

    value: str = ""
    source: str = ""


def is_true(name: str) -> bool:
    """Whether a variable is set to one of the spellings of yes."""
    return os.environ.get(name, "").upper() in TRUE


def offline() -> str:
    """The variable that keeps off the hub, or nothing."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    told = next((name for name in names if os.environ.get(name)), "")
    return told if told and is_true(told) else ""


def _folder(name: str, otherwise: Path) -> Path:
    given = os.environ.get(name)
    return Path(os.path.expandvars(os.path.expanduser(given))) if given else otherwise


def home() -> Path:
    """Where huggingface_hub keeps its things."""
    caches = _folder("XDG_CACHE_HOME", Path(os.path.expanduser("~")) / ".cache")
    return _folder("HF_HOME", caches / "huggingface")


def cache() -> Path:
    """Where it keeps what was downloaded."""
    return _folder("HF_HUB_CACHE", home() / "hub")


def token() -> Token:
    """The token: a variable's, or, on a command line, the one that a login has written."""
    if is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        return Token()
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        value = os.environ.get(name, "").strip()
        if value:
            return _checked(Token(value, name))
    return _checked(Token(_written().strip(), "the token's file")) if access().files else Token()


def _written() -> str:
    try:
        return _folder("HF_TOKEN_PATH", home() / "token").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _checked(found: Token) -> Token:
    if not (found.value.isascii() and found.value.isprintable()):
        raise HubError(f"{found.source} has a character that no token has; set it anew")
    return found if found.value else Token()
