"""Files that a command names: read with a bound on their size, never executed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct

from ...core.errors import InputError
from ...core.files import read_text
from ...core.text_data import load_text


class NamedFiles(Struct, frozen=True):
    """The folder in which a command would be started; None where no file may be opened."""

    folder: Path | None = Path()

    def path(self, name: str, option: str) -> Path:
        """The path of a file that `option` names."""
        if self.folder is None:
            raise InputError(f"{option} names the file {name}, and no files are opened here")
        return self.folder / Path(name).expanduser()

    def exists(self, name: str) -> bool:
        """Whether a file of this name can be read."""
        return self.folder is not None and (self.folder / Path(name).expanduser()).is_file()

    def text(self, name: str, option: str = "") -> str:
        """The text of a file."""
        return read_text(self.path(name, option), option)

    def data(self, name: str, option: str = "") -> Any:
        """The data of a JSON, YAML or TOML file."""
        path = self.path(name, option)
        if not path.is_file():
            raise InputError(f"{option} {name}: no such file".lstrip())
        return load_text(path)
