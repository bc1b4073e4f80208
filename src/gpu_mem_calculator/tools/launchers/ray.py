"""`ray job submit -- COMMAND`."""

from __future__ import annotations

from ...runfile.text.errors import InputError
from .launcher_options import split_options


def without_ray(words: list[str]) -> list[str]:
    """The command that Ray starts."""
    if words[1:3] != ["job", "submit"]:
        raise InputError(f"{' '.join(words[:3])} starts no program; only ray job submit is read")
    return list(split_options("ray", words[3:]).rest)
