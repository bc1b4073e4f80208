"""Where files are off no name is tried as a path, and no sentence tells what there is."""

from __future__ import annotations

import builtins
import contextlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpu_mem_calculator
from gpu_mem_calculator.advice.serving.answers import answers
from gpu_mem_calculator.catalog.hub.access import Access, access, allow
from gpu_mem_calculator.catalog.hub.bounds import HubError
from gpu_mem_calculator.catalog.hub.reader import LocalFolder, file_reader
from gpu_mem_calculator.cli.main import main
from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.estimates.explain.explain import explain
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.runfile.text.text_data import load_text
from tests.catalog.hub.test_checkpoint import CONFIG, gguf_bytes, safetensors_bytes

PACKAGE = str(Path(gpu_mem_calculator.__file__).parent)
ABOVE = set(map(str, Path(PACKAGE).parents))  # the path of a module that is first imported
NO_FILES = Access(files=False, hosts=frozenset())
OPENING = [
    (builtins, "open"),
    (io, "open"),
    *((os, name) for name in ("open", "stat", "lstat", "listdir", "scandir", "readlink", "access")),
]
PLACES = ("", "config.json", "model.safetensors", "tiny.gguf", "notes.txt")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One of each kind that the command line reads."""
    there = tmp_path / "there"
    there.mkdir()
    (there / "config.json").write_text(json.dumps(CONFIG))
    (there / "model.safetensors").write_bytes(
        safetensors_bytes({"model.norm.weight": ("F32", [64], 256)})
    )
    (there / "tiny.gguf").write_bytes(gguf_bytes())
    (there / "notes.txt").write_text("nothing of a model")
    return there


@pytest.fixture
def touched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths outside the package that anything opens or asks for."""
    paths: list[str] = []

    def spy(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            if not (str(path).startswith(PACKAGE) or str(path) in ABOVE):
                paths.append(str(path))
            return real(path, *args, **kwargs)

        return call

    for module, name in OPENING:
        monkeypatch.setattr(module, name, spy(getattr(module, name)))
    return paths


def problem(run: Any) -> str:
    """What is said of a run."""
    with pytest.raises(InputError) as caught:
        full_estimate(run)
    return str(caught.value)


def served(name: str) -> dict[str, Any]:
    """A server whose assistant has a name."""
    return {
        "model": {"name": "llama3.1-8b"},
        "hardware": {"gpu": "h200"},
        "inference": {"engine": "transformers", "speculative_model": name},
    }


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "run",
    [lambda name: {"model": {"name": name}}, served, str],
    ids=["model", "assistant", "run file"],
)
def test_what_is_there_sounds_like_what_is_not(
    folder: Path, place: str, run: Callable[[str], Any], touched: list[str]
) -> None:
    """One sentence for both, and neither is touched."""
    allow(NO_FILES)
    here, gone = str(folder / place), str(folder.parent / "gone" / place)
    touched.clear()
    message = problem(run(here))
    assert message.replace(here, gone) == problem(run(gone))
    assert "this service opens no files" in message
    assert not touched


def test_the_spy_sees_what_the_command_line_opens(folder: Path, touched: list[str]) -> None:
    """With files on every place is looked at: the test above can fail."""
    for place in PLACES:
        touched.clear()
        with contextlib.suppress(InputError):
            full_estimate({"model": {"name": str(folder / place)}}, replay=False)
        assert any(str(folder) in path for path in touched), place


@pytest.mark.parametrize(
    "name",
    [
        "./config.json",
        "~/config.json",
        "config.json",
        "../a/b.gguf",
        "file:///etc/passwd",
        "s3://bucket/model",
        "http://127.0.0.1/x",
        "https://host/owner/model",
        "\\\\host\\share",
        "nul\0.json",
        "owner/model/file.gguf",
        "a" * 5000,
    ],
)
def test_paths_addresses_and_buckets_are_one_thing(name: str, touched: list[str]) -> None:
    """Whatever is no preset and no name of the hub."""
    allow(Access(files=False, hosts=frozenset({"huggingface.co"})))
    touched.clear()
    assert "is not a preset; this service opens no files or addresses" in problem(
        {"model": {"name": name[:300]}}
    )
    assert not touched


def test_names_that_look_like_the_hubs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path of two parts says the same whether it is there or not."""
    monkeypatch.chdir(folder.parent)
    allow(NO_FILES)
    sentence = (
        "model.name={!r} is not a preset, and not read from the hub: look-ups are off "
        "here; paste its config.json instead"
    )
    for name in ("there/tiny.gguf", "there/gone.gguf", "there/config.json"):
        assert problem({"model": {"name": name}}) == sentence.format(name)


def test_presets_and_configs_need_no_files_of_others(touched: list[str]) -> None:
    """A whole answer opens the package's own data and nothing else."""
    allow(NO_FILES)
    run = served("llama3.2-1b")
    run["inference"]["engine"] = "vllm"
    del run["inference"]["speculative_model"]
    answers(full_estimate(run))
    explain(full_estimate({"model": {"config": CONFIG}}))
    assert not touched


def test_every_way_to_a_file_is_shut(folder: Path) -> None:
    """Also those that a run file does not reach."""
    read = file_reader(folder / "tiny.gguf")
    assert read(0, 4) == b"GGUF"
    allow(NO_FILES)
    with pytest.raises(HubError, match="opens no files"):
        read(0, 4)
    with pytest.raises(InputError, match="opens no files"):
        load_text(folder / "config.json")


def test_the_command_line_opens_what_it_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The default is open: a folder, and a run file that names it."""
    assert access() == Access(files=True, hosts=None)
    run = folder / "run.json"
    run.write_text(json.dumps({"model": {"name": str(folder)}}))
    assert main(["calculate", "--config", str(run)]) == 0
    assert "there" in capsys.readouterr().out


def test_a_config_on_disk_is_read_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More is refused, and not read in part."""
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    monkeypatch.setattr("gpu_mem_calculator.catalog.hub.reader.MOST_JSON", 10)
    with pytest.raises(HubError, match=r"config.json: it is larger than 10 bytes"):
        LocalFolder(tmp_path).read_all("config.json")
