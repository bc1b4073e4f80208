"""The user's releases: those that --at or GPU_MEM_CALC_AT names, and those that are found here."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..tools.releases.named import KnownReleases, Named
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

    return with_releases(run, named_releases(texts))


def known_releases(texts: Sequence[str]) -> KnownReleases | None:
    """What a command is read with: the releases that --at names; None where it names none."""
    if list(texts) in ([], [NEWEST]):
        return None
    from ..tools.releases.named import KnownReleases

    return KnownReleases(named_releases(texts))


def named_releases(texts: Sequence[str]) -> Named:
    """What the values of --at say; a file among them is opened."""
    from ..tools.releases.named import read_at
    from ..tools.releases.pins import file_releases

    return read_at(texts, file_releases)


def releases_of_command(
    args: argparse.Namespace,
) -> tuple[Named | None, Sequence[Release], Sequence[str]]:
    """The releases that --at names; those that are installed where the command would run, or that
    files beside it pin; and a sentence for what could not be read.
    """
    texts = named_texts(args)
    if texts == [NEWEST]:
        return None, (), ()
    named = named_releases(texts)
    if named.newest or named.listed:  # a list is of a whole environment, which is not this one
        return named, (), ()
    from pathlib import Path

    from ..tools.launchers.environments import installed
    from ..tools.releases.pins import pinned

    here, pins = installed(args.launch, Path()), pinned(Path())
    return named, [*here.releases, *pins.releases], [*here.notes, *pins.notes]
