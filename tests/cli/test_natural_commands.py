"""What people type: each command answers, or gives a next step that works when it is pasted."""

from __future__ import annotations

import io
import json
import re
import shlex
from pathlib import Path

import pytest

from tests.corpus import sampled

from .conftest import Answer, Command
from .natural_commands import ANSWERED, GUIDED

# A next step in a sentence.
COMMAND = re.compile(r"gpu-mem-calc ((?:[a-z]+|--help)(?: (?:'[^']*'|[^\s;,()]+))*)")
MEANT = re.compile(r"did you mean '([^']+)'")
OPTION = re.compile(r"\b(?:use|add) (--[a-z-]+)(?: ([a-z0-9.]+))?")
SETTING = re.compile(r"\buse --set (\S+=\S+)")
ENGINE = re.compile(r"\buse engine '?([a-z_]+)'?")
KEY = re.compile(r"\buse ([a-z]+\.[a-z_.]+=[^\s;,]+)")
SET = re.compile(r"^([a-z]+\.[a-z_.]+)=.*\bset it to ([^\s,;]+)")
CHOICE = re.compile(r"(?:such as|not one of|use the smallest,|choose|use) '?([\w.-]+)'?")
REFUSED = re.compile(r"^[a-z]+\.([a-z_]+) is|^(--[\w-]+) is|'([^']+)'")  # a key, an option, a value


def next_words(words: list[str], sentence: str) -> list[str]:
    """The words of the command that a refusal proposes."""
    if command := re.search(f"use {COMMAND.pattern}", sentence):
        return shlex.split(command[1])
    if meant := MEANT.search(sentence):
        return _replaced(words, sentence, meant[1])
    if key := KEY.search(sentence):
        return [*_without(words, "--set"), "--set", key[1]]
    if setting := SETTING.search(sentence):
        name, _, value = setting[1].partition("=")
        option_name = f"--{name.replace('_', '-')}"
        kept = [word for word in words if word not in (option_name, value)]
        return [*kept, "--set", setting[1]]
    if option := OPTION.search(sentence):
        return [*_without(words, option[1]), option[1], *([option[2]] if option[2] else [])]
    if engine := ENGINE.search(sentence):
        return [*_without(words, "--engine"), "--engine", engine[1]]
    if setting := SET.search(sentence):
        return [*_without(words, "--gpus"), "--set", f"{setting[1]}={setting[2]}"]
    if choices := CHOICE.findall(sentence):
        return _replaced(words, sentence, choices[-1])
    command = COMMAND.search(sentence)
    assert command is not None, f"no next step: {sentence}"
    return shlex.split(command[1])


def _replaced(words: list[str], sentence: str, right: str) -> list[str]:
    """The words with the one that the sentence refuses replaced, or added where one is missing."""
    refused = REFUSED.search(sentence)
    if refused is None:  # something is missing
        return [*words, right]
    wrong = next(filter(None, refused.groups()))
    changed = [re.sub(rf"([.=]){re.escape(wrong)}(?==|$)", rf"\g<1>{right}", one) for one in words]
    return [right if word == wrong else word for word in changed]


def _without(words: list[str], option: str) -> list[str]:
    """The words without an option and its value."""
    if option not in words:
        return words
    place = words.index(option)
    return [*words[:place], *words[place + 2 :]]


@pytest.fixture
def run(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a command in a folder that has the files people name."""
    training = {"batch_size": 1, "seq_len": 512}
    small = {"model": {"name": "llama3.2-1b"}, "training": training, "hardware": {"gpu": "l4"}}
    files = {
        "run.json": small,
        "hf.json": {
            **small,
            "training": {"per_device_train_batch_size": 1, "max_length": 512, "bf16": True},
        },
        "server.json": {"model": {"name": "llama3.2-1b"}, "inference": {"engine": "vllm"}},
        "ds_config.json": {
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {"stage": 3},
            "bf16": {"enabled": True},
        },
    }
    for name, data in files.items():
        (tmp_path / name).write_text(json.dumps(data))
    monkeypatch.chdir(tmp_path)

    def in_folder(*words: str) -> Answer:
        standard_input = io.TextIOWrapper(io.BytesIO((tmp_path / "run.json").read_bytes()))
        monkeypatch.setattr("sys.stdin", standard_input)
        return command(*words)

    return in_folder


@pytest.mark.parametrize("line", sampled(ANSWERED, 25))
def test_it_answers(run: Command, line: str) -> None:
    """Exit code 0, or 1 with --check, and an answer."""
    answer = run(*shlex.split(line))
    assert answer.code in (0, 1), answer.err
    assert answer.out.strip() or "--output" in line


@pytest.mark.parametrize("line", GUIDED)
def test_it_gives_a_next_step_that_works(run: Command, line: str) -> None:
    """One sentence on stderr, whose command answers when it is pasted."""
    words = shlex.split(line)
    answer = run(*words)
    assert answer.code == 2
    assert answer.err.count("\n") == 1
    sentence = answer.err.removeprefix("gpu-mem-calc: ").rstrip("\n")
    step = next_words(words, sentence)
    assert step != words, sentence
    pasted = run(*step)
    assert pasted.code in (0, 1), f"{sentence}\n{shlex.join(step)}\n{pasted.err}"
