"""--at, and releases that are found where a command would run."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.cli.releases import VARIABLE

from .conftest import Command

SERVE = ["vllm", "serve", "Qwen/Qwen3-8B"]
SFT = ["trl", "sft", "--model_name_or_path", "Qwen/Qwen2.5-0.5B", "--dataset_name", "a/b"]
GPU = ["--gpu", "h100-80gb-sxm"]


def checked(command: Command, *words: str) -> dict[str, Any]:
    """The answer of `check` as data."""
    found: dict[str, Any] = command("check", *GPU, "--format", "json", *words).data
    return found


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which commands are checked, with no program on the path."""
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_release_of_at_decides_and_stands_in_the_verdicts_line(command: Command) -> None:
    """0.9 of the card's memory before 0.20, and 0.92 since."""
    old, new = (checked(command, "--at", f"vllm={one}", *SERVE) for one in ("0.19.0", "0.20.0"))
    assert ", vLLM 0.19.0, " in old["summary"]
    assert old["result"]["versions"] == {"vllm": {"release": "0.19.0", "read_from": "--at"}}
    pools = [one["result"]["serving"]["kv_pool_bytes"] for one in (old, new)]
    assert pools[1] > pools[0]


def test_a_month_names_the_newest_release_of_its_last_day(command: Command) -> None:
    """Of each tool that the run uses."""
    found = checked(command, "--at", "2025-06", *SFT)["result"]["versions"]
    assert [found[name]["release"] for name in ("trl", "transformers")] == ["0.19.0", "4.53.0"]
    assert found["trl"]["read_from"] == "the newest on 2025-06-30"


def test_what_is_installed_wins_over_what_a_file_pins(here: Path, command: Command) -> None:
    """And is said in the verdict's line."""
    (here / "requirements.txt").write_text("trl==0.24.0\ntransformers==4.57.1\n")
    pinned = checked(command, *SFT)["summary"]
    assert "trl.SFTTrainer 0.24.0, transformers 4.57.1, " in pinned
    (here / "lib" / "python3.12" / "site-packages" / "trl-0.19.1.dist-info").mkdir(parents=True)
    (here / "bin").mkdir()
    (here / "bin" / "python3").touch()
    program = here / "bin" / "trl"
    program.write_text(f"#!{here}/bin/python3\n")
    program.chmod(0o755)
    found = checked(command, *SFT)["result"]["versions"]
    assert found["trl"] == {"release": "0.19.1", "read_from": str(here)}
    assert found["transformers"]["release"] == "4.57.1"
    assert "0.24.0" not in checked(command, "--at", "newest", *SFT)["summary"]


def test_a_broken_environment_is_said_and_the_newest_release_is_taken(
    here: Path, command: Command
) -> None:
    """One sentence among what is assumed."""
    found = checked(command, "env/bin/python", "-m", "vllm.entrypoints.openai.api_server", *MODEL)
    assert "env/bin/python is not on this machine" in found["result"]["assumed"]
    assert "vLLM" in found["summary"]


MODEL = ["--model", "Qwen/Qwen3-8B"]


def test_a_list_of_packages_is_an_environment(here: Path, command: Command) -> None:
    """It wins over what files here pin; a release that is named beside it wins over it."""
    (here / "requirements.txt").write_text("trl==0.24.0\ntransformers==4.56.0\n")
    (here / "freeze.txt").write_text("numpy==2.0\ntrl==0.19.1\nvllm==0.9.2\n")
    found = checked(command, "--at", "freeze.txt", *SFT)
    assert found["result"]["versions"]["trl"] == {"release": "0.19.1", "read_from": "freeze.txt"}
    assert "trl.SFTTrainer 0.19.1" in found["summary"]
    assert "requirements.txt" not in str(found["result"]["versions"])
    named = checked(command, "--at", "freeze.txt", "--at", "trl=0.20.0", *SFT)["summary"]
    assert "trl.SFTTrainer 0.20.0" in named
    (here / "freeze.txt").write_text("peft==0.15.0\n")
    refused = command("check", *GPU, "--at", "freeze.txt", *SFT)
    assert "freeze.txt has no release of trl, which this run uses" in refused.err
    absent = command("check", *GPU, "--at", "freze.txt", *SFT)
    assert absent.code == 2
    assert "or a file such as what pip freeze prints" in absent.err


def test_standard_input_is_a_list(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that pip freeze can stand in front of a check."""
    given = io.TextIOWrapper(io.BytesIO(b"trl==0.19.1\n"))
    monkeypatch.setattr("sys.stdin", given)
    found = command("check", *GPU, "--at", "-", *SFT)
    assert "TRL 0.19.1 (standard input)" in " ".join(found.out.split())


def test_a_list_in_front_of_a_command_is_read_from_standard_input(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a thread pastes both."""
    given = f"numpy==2.0\ntrl==0.19.1\n{' '.join(SFT)}\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
    found = command("check", *GPU, "-")
    assert "TRL 0.19.1 (standard input)" in " ".join(found.out.split())


def test_the_release_of_a_run_file_wins_over_what_is_pinned_beside_it(
    here: Path, command: Command
) -> None:
    """And --at wins over both."""
    (here / "requirements.txt").write_text("trl==0.24.0\n")
    (here / "run.json").write_text(
        '{"model": {"name": "qwen2.5-0.5b"}, "program": {"tool": "trl.SFTTrainer", "args": {}}, '
        '"releases": {"trl": "0.19.1"}}'
    )
    found = checked(command, "run.json")["result"]["versions"]
    assert found["trl"] == {"release": "0.19.1", "read_from": "the run file"}
    assert "trl.SFTTrainer 0.20.0" in checked(command, "--at", "trl=0.20.0", "run.json")["summary"]


def test_the_variable_says_what_at_says(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The option wins."""
    monkeypatch.setenv(VARIABLE, "vllm=0.10.1")
    assert "vLLM 0.10.1" in checked(command, *SERVE)["summary"]
    assert "vLLM 0.9.2" in checked(command, "--at", "vllm=0.9.2", *SERVE)["summary"]


def test_infer_takes_at_and_repeats_it_in_its_commands(command: Command) -> None:
    """A command that is copied asks for the same release."""
    answer = command("infer", "qwen3-8b", *GPU, "--at", "vllm=0.9.0")
    words = " ".join(answer.out.split())
    assert "vLLM 0.9.0 (--at)" in words
    assert "--at vllm=0.9.0 --long" in words


@pytest.mark.parametrize("word", ["calculate", "validate"])
def test_commands_that_take_a_file_take_at(word: str, command: Command, tmp_path: Path) -> None:
    """A program of a run file, at the release that is named."""
    path = tmp_path / "run.json"
    path.write_text(
        '{"model": {"name": "qwen2.5-0.5b"}, "program": {"tool": "transformers.Trainer", "args": '
        '{"bf16": true}, "version": "5.17.0"}, "hardware": {"gpu": "h200"}}'
    )
    answer = command(word, str(path), "--at", "transformers=4.57.1", "--format", "json")
    assert answer.code == 0, answer.err
    assert "4.57.1" in answer.out


FACTORY = [
    *("llamafactory-cli", "train", "--model_name_or_path", "Qwen/Qwen2.5-0.5B", "--stage", "sft"),
    *("--do_train", "--dataset", "x", "--template", "qwen", "--finetuning_type", "full"),
]


def test_a_tool_and_what_it_starts_stand_in_the_verdicts_line(command: Command) -> None:
    """The tool's release, and that of the trainer, which the tool's release allows."""
    found = checked(command, "--at", "llamafactory=0.9.3", *FACTORY)["summary"]
    assert "transformers.Trainer 4.52.4, LLaMA-Factory 0.9.3, " in found


def test_two_releases_of_a_tool_are_compared(command: Command) -> None:
    """0.9.0 cuts sequences to half as many tokens."""
    options = ["--at", "llamafactory=0.9.0", "--at", "llamafactory=0.9.1", "--format", "json"]
    found = command("compare", *GPU, *options, *FACTORY).data
    assert found["a"]["used_bytes"] < found["b"]["used_bytes"]


def test_a_tools_file_is_read_at_a_release(here: Path, command: Command) -> None:
    """calculate --config, and its problems."""
    (here / "file.yaml").write_text(
        "model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: sft\ndo_train: true\n"
        "finetuning_type: full\nuse_dft_loss: true\n"
    )
    words = ["calculate", "--config", "file.yaml", *GPU, "--format", "json"]
    assert command(*words, "--at", "llamafactory=0.9.4").data["versions"]
    refused = command(*words, "--at", "llamafactory=0.9.3")
    assert refused.code == 2
    assert "use_dft_loss is not a key of llamafactory 0.9.3: it came with 0.9.4" in refused.err


def test_experts_of_newer_transformers_are_a_limit(command: Command) -> None:
    """They keep no masked copies since 5.18, which is not modelled."""
    for release, model, said in (
        ("5.23.0", "Qwen/Qwen3-30B-A3B", True),
        ("5.17.0", "Qwen/Qwen3-30B-A3B", False),
        ("5.23.0", "Qwen/Qwen3-0.6B", False),
    ):
        words = ["--at", f"transformers={release}", *SFT[:3], model, *SFT[4:], "--use_peft"]
        found = command("check", *GPU, "--format", "json", *words)
        assert ("no masked copies" in found.out) is said


def test_a_release_may_be_written_as_pip_does(command: Command) -> None:
    """With two equals signs."""
    serves = ("vllm", "serve", "Qwen/Qwen3-8B")
    both = [command("check", "--at", f"vllm{sign}0.9.0", *serves).out for sign in ("=", "==")]
    assert both[0] == both[1]
    assert "vLLM 0.9.0" in both[0]
