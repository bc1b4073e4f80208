"""The user's releases: those that --at or GPU_MEM_CALC_AT names, and those that are found here."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..tools.releases.named import Named
    from ..tools.releases.release import Release

NEWEST = "newest"  # the releases that are modelled, whatever is installed
VARIABLE = "GPU_MEM_CALC_AT"  # what --at says where it is not given


def named_texts(args: argparse.Namespace) -> list[str]:
    """What --at says, else the variable."""
    given: list[str] = getattr(args, "at", None) or []
    return given or [text for text in [os.environ.get(VARIABLE, "")] if text]


def at_releases(args: argparse.Namespace, run: Mapping[str, Any]) -> dict[str, Any]:
    """A run file with the releases that --at names."""
    texts = named_texts(args)
    if texts in ([], [NEWEST]):
        return dict(run)
    from ..tools.releases.apply import with_releases
    from ..tools.releases.named import read_at

    return with_releases(run, read_at(texts))


def releases_of_command(
    args: argparse.Namespace,
) -> tuple[Named | None, Sequence[Release], Sequence[str]]:
    """The releases that --at names; those that are installed where the command would run, or that
    files beside it pin; and a sentence for what could not be read.
    """
    texts = named_texts(args)
    if texts == [NEWEST]:
        return None, (), ()
    from ..tools.releases.named import read_at

    named = read_at(texts)
    if named.newest:
        return named, (), ()
    from pathlib import Path

    from ..tools.launchers.environments import installed
    from ..tools.releases.pins import pinned

    here = installed(args.launch, Path())
    return named, [*here.releases, *pinned(Path())], here.notes
