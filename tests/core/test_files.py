"""Files that are read within a bound."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from gpu_mem_calculator.backtest.rows import read_rows
from gpu_mem_calculator.core import files
from gpu_mem_calculator.core.errors import InputError
from gpu_mem_calculator.core.files import read_text
from gpu_mem_calculator.core.runfile import load_text
from gpu_mem_calculator.measure.case import read_cases


@pytest.mark.parametrize("read", [load_text, read_rows, read_cases])
def test_a_device_without_an_end_is_refused(read: object) -> None:
    """Reading stops at the bound."""
    with pytest.raises(InputError, match=r"it is larger than .* bytes; give a smaller file"):
        read("/dev/zero")  # type: ignore[operator]


def test_a_file_is_read_up_to_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte more is refused in a sentence with the path."""
    file = tmp_path / "run.json"
    file.write_text(f'"{"x" * 8}"')
    assert len(read_text(file, most=10)) == 10
    with pytest.raises(InputError, match=r"run.json: it is larger than 9 bytes"):
        read_text(file, most=9)
    assert files.MOST_BYTES == 8 * 2**20


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    """As `--config <(...)` gives one, whatever the pieces in which it comes."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write() -> None:
        with pipe.open("w") as file:
            for piece in ('{"model": ', '{"name": "gpt2"}', "}"):
                file.write(piece)
                file.flush()

    threading.Thread(target=write, daemon=True).start()
    assert load_text(pipe) == {"model": {"name": "gpt2"}}
