"""The environment variables of huggingface_hub (its docs, "Environment variables"), which have the
same meaning here; its cache and its token are read, never written.
"""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

from .access import access
from .bounds import HubError

TRUE = ("1", "ON", "YES", "TRUE")


class Token(Struct, frozen=True):
    """A token for private models, and its origin for messages; empty where there is none."""

    value: str = ""
    source: str = ""


def is_true(name: str) -> bool:
    """Whether a variable is set to one of TRUE, in any case."""
    return os.environ.get(name, "").upper() in TRUE


def offline() -> str:
    """The name of the variable that turns the hub off; empty where none does."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    first = next((name for name in names if os.environ.get(name)), "")
    return first if first and is_true(first) else ""


def _folder(name: str, default: Path) -> Path:
    path = os.environ.get(name)
    return Path(os.path.expandvars(os.path.expanduser(path))) if path else default


def home() -> Path:
    """The folder of huggingface_hub: HF_HOME, else below the user's cache."""
    caches = _folder("XDG_CACHE_HOME", Path(os.path.expanduser("~")) / ".cache")
    return _folder("HF_HOME", caches / "huggingface")


def cache() -> Path:
    """The folder of downloaded models: HF_HUB_CACHE, else below `home`."""
    return _folder("HF_HUB_CACHE", home() / "hub")


def token() -> Token:
    """The token of a variable, or, on the command line, the one that a login has written."""
    if is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        return Token()
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        value = os.environ.get(name, "").strip()
        if value:
            return _check(Token(value, name))
    return _check(Token(_login_token().strip(), "the token's file")) if access().files else Token()


def _login_token() -> str:
    try:
        return _folder("HF_TOKEN_PATH", home() / "token").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _check(candidate: Token) -> Token:
    if not (candidate.value.isascii() and candidate.value.isprintable()):
        raise HubError(f"{candidate.source} has a character that no token has; set it again")
    return candidate if candidate.value else Token()
