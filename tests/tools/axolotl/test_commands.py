"""`axolotl train FILE ...`, its launchers, and options that replace keys of the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.launchers.launch import read_launch
from gpu_mem_calculator.tools.reading.named_files import NamedFiles
from gpu_mem_calculator.tools.reading.reading import Reading
from gpu_mem_calculator.tools.reading.tools import read_command

from .settings import LEAST, QLORA


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file."""
    (tmp_path / "qlora.yml").write_text(json.dumps({**LEAST, **QLORA}), encoding="utf-8")
    return tmp_path


def read(folder: Path, command: str) -> Reading:
    """What a command means."""
    return read_command(read_launch(command.split(), NamedFiles(folder)))


@pytest.mark.parametrize(
    ("command", "gpus"),
    [
        ("axolotl train qlora.yml", None),
        ("axolotl train qlora.yml --launcher torchrun -- --nproc_per_node 4", 4),
        ("axolotl train qlora.yml -- --num_processes 8", 8),
        ("axolotl train qlora.yml --num-processes 2", 2),
        ("accelerate launch --num_processes 2 -m axolotl.cli.train qlora.yml", 2),
        ("CUDA_VISIBLE_DEVICES=0,1 axolotl train qlora.yml", 2),
        ("axolotl train qlora.yml --use-ray --ray-num-workers 4", 4),
    ],
)
def test_the_number_of_gpus(folder: Path, command: str, gpus: int | None) -> None:
    """By the launcher, the environment, or the file."""
    found = read(folder, command)
    assert found.run.get("hardware", {}).get("num_gpus") == gpus
    assert not found.problems


def test_options_replace_keys(folder: Path) -> None:
    """With dashes or underscores, as switches, and of a section."""
    words = "--micro-batch-size 4 --lora_r=64 --no-load-in-4bit --adapter lora --trl.beta 0.1"
    found = read(folder, f"axolotl train qlora.yml {words} --debug")
    program = found.run["program"]
    assert program["args"]["per_device_train_batch_size"] == 4
    assert program["peft"]["r"] == 64
    assert "quantization" not in program
    assert found.keys["trl.beta"] == "memory"
    before = read(folder, "axolotl train --sequence-len 1024 qlora.yml")
    assert before.run["program"]["data"]["seq_len"] == 1024


def test_what_is_wrong_with_a_command(folder: Path) -> None:
    """One sentence each."""
    problems = read(folder, "axolotl train qlora.yml --flash-atention").problems
    assert problems == [
        "--flash_atention is not an option of axolotl train; did you mean 'flash_attention'?"
    ]
    assert [one.key for one in read(folder, "axolotl train qlora.yml --sweep s.yml").limits][
        -1:
    ] == ["--sweep='s.yml'"]
    for command in (
        "axolotl train",
        "axolotl train x.yml",
        "axolotl train a.yml --launcher x -- -n",
    ):
        with pytest.raises(InputError):
            read(folder, command)


def test_a_key_that_is_there_twice_is_the_last(tmp_path: Path) -> None:
    """As yaml.safe_load has it; what it is of two is said."""
    text = "base_model: qwen2.5-0.5b\nmicro_batch_size: 1\ndatasets: [{path: a, type: alpaca}]\n"
    (tmp_path / "a.yml").write_text(f"{text}micro_batch_size: 4\n", encoding="utf-8")
    reading = read_command(read_launch(["axolotl", "train", "a.yml"], NamedFiles(tmp_path)))
    assert reading.run["program"]["args"]["per_device_train_batch_size"] == 4
    assert "micro_batch_size: there twice in the file, of which the last holds" in reading.assumed
