"""The door: what is given is recognised, read once, and translated once."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpu_mem_calculator import estimate
from gpu_mem_calculator.catalog.hub.access import Access, allow
from gpu_mem_calculator.cli.main import main
from gpu_mem_calculator.ledger.remember import forget
from gpu_mem_calculator.runfile.find_model import model_source
from gpu_mem_calculator.runfile.program import Program, Setup, Translation
from gpu_mem_calculator.runfile.read import parse
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools import program_section
from gpu_mem_calculator.tools.read import Asked, Door, read, read_all
from gpu_mem_calculator.tools.reading import COMMAND, DATA, PATH, TEXT, WORDS
from tests.corpus import sampled
from tests.tools.corpora.score import rows

SERVER = "vllm serve Qwen/Qwen3-8B --max-model-len 4096"
AXOLOTL = {"base_model": "gpt2", "micro_batch_size": 2, "gradient_accumulation_steps": 4}
TRL = "trl sft --model_name_or_path Qwen/Qwen2.5-7B"
ADAPTER = f"{TRL} --use_peft --load_in_4bit"
CHECKS = [
    f"check --gpu 4090 {ADAPTER}",
    f"check --gpu 4090 {ADAPTER} --per_device_train_batch_size 16",
    f"check --gpu h100 {TRL}",
]


class Counts:
    """How often a program is translated, and a model is looked up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.translated: Counter[bytes] = Counter()
        self.looked_up: Counter[bytes] = Counter()
        translate, look_up = program_section.translate, model_source._look_up

        def counted(program: Program, setup: Setup) -> Translation:
            self.translated[msgspec.json.encode((program, setup.num_gpus, setup.model()))] += 1
            return translate(program, setup)

        def counted_model(model: Any, headers: bool) -> Any:
            self.looked_up[msgspec.json.encode(model)] += 1
            return look_up(model, headers)

        monkeypatch.setattr(program_section, "translate", counted)
        monkeypatch.setattr(model_source, "_look_up", counted_model)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    """From now on, with nothing remembered."""
    forget()
    return Counts(monkeypatch)


@pytest.mark.parametrize("words", CHECKS)
def test_a_program_is_translated_once(words: str, counts: Counts) -> None:
    """Once for each run of it on another number of GPUs, however often it is estimated."""
    assert main(words.split()) in (0, 1, 3)
    assert set(counts.translated.values()) == {1}
    assert set(counts.looked_up.values()) == {1}
    assert len(counts.looked_up) == 1


@pytest.mark.parametrize("row", sampled(rows("axolotl"), 3))
def test_an_axolotl_file_is_translated_once(
    row: dict[str, Any], counts: Counts, tmp_path: Path
) -> None:
    """Remedies, other cards and the longest sequence are of the same program."""
    path = tmp_path / "file.json"
    path.write_text(json.dumps(row["data"]), encoding="utf-8")
    main(["check", "--gpu", "h100", str(path)])
    assert set(counts.translated.values()) <= {1}


def test_another_model_is_another_translation(tmp_path: Path, counts: Counts) -> None:
    """A model's config.json may change while a process runs."""
    config = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 64, "vocab_size": 100}
    path = tmp_path / "config.json"
    run = {"model": {"name": str(tmp_path)}, "program": {"tool": "transformers.Trainer"}}
    found = []
    for embedding in (64, 128):
        path.write_text(json.dumps({**config, "n_embd": embedding}), encoding="utf-8")
        found.append(estimate(run, replay=False).allocated_bytes)
    assert found[0] < found[1]
    assert list(counts.translated.values()) == [1, 1]


def test_a_model_on_disk_is_read_once(tmp_path: Path, counts: Counts) -> None:
    """However many runs of it are estimated, until its files change."""
    config = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 64, "vocab_size": 100}
    path = tmp_path / "config.json"
    for layers in (2, 3):
        path.write_text(json.dumps({**config, "n_layer": layers}), encoding="utf-8")
        os.utime(path, (layers, layers))  # as if seconds had passed
        command = f"trl sft --model_name_or_path {tmp_path}"
        assert main(["check", "--gpu", "h100", *command.split()]) == 0
        assert list(counts.looked_up.values()) == [layers - 1]


def test_a_large_program_and_a_large_model_are_not_remembered(counts: Counts) -> None:
    """A service would keep what its clients send."""
    config = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 64, "vocab_size": 100}
    large = {"id2label": {str(i): "x" * 50 for i in range(2000)}}
    program = {"tool": "transformers.Trainer", "args": {"run_name": "x" * 100_000}}
    for more, times in (({}, 2), (large, 4)):
        for _ in range(2):
            estimate({"model": {"config": config | more}, "program": program}, replay=False)
        assert max(counts.translated.values()) == times
    assert sorted(counts.looked_up.values())[0] == 1
    assert sorted(counts.looked_up.values())[-1] > 2


def test_every_kind_of_source_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path, a text, a command in quotes, words, data."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "axolotl.yaml").write_text(json.dumps(AXOLOTL), encoding="utf-8")
    (tmp_path / "run.sh").write_text(SERVER, encoding="utf-8")
    sources: dict[str, list[Any]] = {
        PATH: ["axolotl.yaml", tmp_path / "axolotl.yaml"],
        TEXT: [json.dumps(AXOLOTL), f"#!/bin/bash\n{SERVER}"],
        COMMAND: [SERVER, "run.sh", "axolotl train axolotl.yaml"],
        WORDS: [SERVER.split(), ["axolotl", "train", "axolotl.yaml"]],
        DATA: [AXOLOTL, {"model": {"name": "gpt2"}}],
    }
    named = {read(one).file.model.name for every in sources.values() for one in every}
    assert named == {"gpt2", "Qwen/Qwen3-8B"}


def test_python_says_what_was_assumed_and_is_not_modelled() -> None:
    """As the command line does: before what the estimate assumes itself."""
    asked = read("vllm serve Qwen/Qwen3-8B --otlp-traces-endpoint x --enable-dbo")
    result = estimate(asked, replay=False)
    assert asked.notes
    assert result.assumed[: len(asked.notes)] == list(asked.notes)
    assert asked.limits
    assert [one.key for one in result.limits][-1:] == [one.key for one in asked.limits]


def test_several_commands_are_no_run() -> None:
    """`check` answers them, each by its name."""
    text = f"{SERVER} &\n{SERVER} --port 8001 &\nwait"
    assert len(read_all(text)) == 2
    with pytest.raises(InputError, match=r"starts 2 commands .*, and a run is one; use .* check"):
        estimate(text)


def test_a_door_may_open_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text is a text then, even where it is the name of a file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").write_text(json.dumps({"model": {"name": "llama2-7b"}}), encoding="utf-8")
    assert read("gpt2", Door(folder=None)).run == {"model": {"name": "gpt2"}}
    assert read("gpt2").run == {"model": {"name": "llama2-7b"}}
    with pytest.raises(InputError, match="no files are opened here"):
        read("axolotl train axolotl.yaml", Door(folder=None))


def test_a_process_that_opens_no_files_opens_none_that_a_command_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the door says."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "axolotl.yaml").write_text(json.dumps(AXOLOTL), encoding="utf-8")
    command = "axolotl train axolotl.yaml"
    assert read(command).file.model.name == "gpt2"
    allow(Access(files=False))
    try:
        with pytest.raises(InputError, match="no files are opened here"):
            read(command)
        with pytest.raises(InputError, match="opens no files"):
            read("axolotl.yaml")
    finally:
        allow(Access())


def test_the_name_of_a_model_is_for_files_that_name_none() -> None:
    """DeepSpeed's JSON has none; of another tool's file it replaces the one that is named."""
    deepspeed = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
    assert read(deepspeed, Door(model="gpt2")).file.model.name == "gpt2"
    assert read(AXOLOTL, Door(model="llama2-7b")).file.model.name == "llama2-7b"
    with pytest.raises(InputError, match="names no model"):
        estimate(deepspeed)
    with pytest.raises(InputError, match="is for DeepSpeed's JSON"):
        read({"model": {"name": "gpt2"}}, Door(model="llama2-7b"))


def test_a_run_file_is_parsed_by_its_own_names_alone() -> None:
    """A program is the door's to translate, and other tools' files are its to read."""
    with pytest.raises(InputError, match="'program' is not a section"):
        parse({"model": {"name": "gpt2"}, "program": {"tool": "transformers.Trainer"}})
    with pytest.raises(InputError, match="Axolotl"):
        parse(AXOLOTL)


def test_what_was_read_is_not_read_again(counts: Counts) -> None:
    """Its file keeps the translation."""
    asked = read({"model": {"name": "gpt2"}, "program": {"tool": "transformers.Trainer"}})
    assert read(asked) is asked
    assert read(asked.file).file is asked.file
    assert asked.translation is asked.file.translation
    assert isinstance(asked, Asked)
    assert sum(counts.translated.values()) == 1
