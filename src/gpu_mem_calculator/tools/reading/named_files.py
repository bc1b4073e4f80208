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
    - `given`: texts that stand beside the command, by the ends of their paths
    - `wanted`: gets the names of files that are asked for, where no file may be opened
    """

    folder: Path | None = Path()
    written: Mapping[str, str] = {}
    releases: KnownReleases | None = None
    given: Mapping[str, str] = {}
    wanted: list[str] | None = None

    def finding(self, *found: Release) -> NamedFiles:
        """The same with further releases that were found, which win over those found before."""
        from ..releases.named import KnownReleases

        known = self.releases or KnownReleases()
        return replace(self, releases=replace(known, here=(*found, *known.here)))

    def path(self, name: str, option: str) -> Path:
        """The path of a file that `option` names."""
        if self.folder is None:
            self.want(name)
            why = "and no files are opened here; give its text, too"
            raise InputError(f"{option or 'the command'} names the file {name}, {why}")
        try:
            return self.folder / Path(name).expanduser()
        except RuntimeError as error:  # a home that nobody has
            raise InputError(f"{option} {name}: {error}".lstrip()) from None

    def want(self, name: str) -> None:
        """Note that a file would be read, where no file may be opened."""
        if self.folder is None and self.wanted is not None and name not in self.wanted:
            self.wanted.append(name)

    def exists(self, name: str) -> bool:
        """Whether a file of this name can be read."""
        there = self._text(name) is not None
        return there or (self.folder is not None and _is_file(self.path(name, "")))

    def text(self, name: str, option: str = "") -> str:
        """The text of a file, without what has the form of a secret."""
        text = self._text(name)
        if text is not None:
            return text
        from ...runfile.text.files import read_text

        return hide_forms(read_text(self.path(name, option), option))

    def data(self, name: str, option: str = "", repeated: list[str] | None = None) -> Any:
        """The data of a JSON, YAML or TOML file.

        repeated: gets the keys that YAML has twice, of which the last holds; without it they are
        refused
        """
        if self._text(name) is not None:
            from ...runfile.text.text_data import parse_any_text

            return parse_any_text(self.text(name), name, repeated)
        path = self.path(name, option)
        if not _is_file(path):
            raise InputError(f"{option} {name}: no such file".lstrip())
        from ...runfile.text.text_data import load_text

        return load_text(path, repeated)

    def _text(self, name: str) -> str | None:
        """The text of a file that is written before, or that stands beside the command."""
        path = os.path.normpath(name)
        if path in self.written:
            return self.written[path]
        ends = (text for end, text in self.given.items() if f"/{path}".endswith(f"/{end}"))
        found = self.given.get(path) or next(ends, None)
        return None if found is None else hide_forms(found)


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
