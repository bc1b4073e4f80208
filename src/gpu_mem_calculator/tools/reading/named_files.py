"""Files that a command names: read with a bound on their size, never executed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.secrets import hide_forms
from ...runfile.text.errors import InputError

if TYPE_CHECKING:
    from ..releases.named import KnownReleases
    from ..releases.release import Release


class NamedFiles(Struct, frozen=True):
    """The files that a command can name, and the releases that are known of its tools.

    - `folder`: where the command would be started; None where no file may be opened
    - `written`: texts of files that a shell script writes before, by their normal paths
    """

    folder: Path | None = Path()
    written: Mapping[str, str] = {}
    releases: KnownReleases | None = None

    def finding(self, *found: Release) -> NamedFiles:
        """The same with further releases that were found, which win over those found before."""
        from ..releases.named import KnownReleases

        known = self.releases or KnownReleases()
        return replace(self, releases=replace(known, here=(*found, *known.here)))

    def path(self, name: str, option: str) -> Path:
        """The path of a file that `option` names."""
        if self.folder is None:
            raise InputError(f"{option} names the file {name}, and no files are opened here")
        try:
            return self.folder / Path(name).expanduser()
        except RuntimeError as error:  # a home that nobody has
            raise InputError(f"{option} {name}: {error}".lstrip()) from None

    def exists(self, name: str) -> bool:
        """Whether a file of this name can be read."""
        there = os.path.normpath(name) in self.written
        return there or (self.folder is not None and _is_file(self.path(name, "")))

    def text(self, name: str, option: str = "") -> str:
        """The text of a file, without what has the form of a secret."""
        if os.path.normpath(name) in self.written:
            return self.written[os.path.normpath(name)]
        from ...runfile.text.files import read_text

        return hide_forms(read_text(self.path(name, option), option))

    def data(self, name: str, option: str = "", repeated: list[str] | None = None) -> Any:
        """The data of a JSON, YAML or TOML file.

        repeated: gets the keys that YAML has twice, of which the last holds; without it they are
        refused
        """
        if os.path.normpath(name) in self.written:
            from ...runfile.text.text_data import parse_any_text

            return parse_any_text(self.text(name), name, repeated)
        path = self.path(name, option)
        if not _is_file(path):
            raise InputError(f"{option} {name}: no such file".lstrip())
        from ...runfile.text.text_data import load_text

        return load_text(path, repeated)


def repeated_note(repeated: Sequence[str]) -> list[str]:
    """One sentence on keys that a file has twice; none where it has none."""
    names = ", ".join(dict.fromkeys(repeated))
    return [f"{names}: there twice in the file, of which the last holds"] if names else []


def _is_file(path: Path) -> bool:
    """Whether a path is a file; a name that no file can have is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
