"""The command line as a whole: help, version, verbs, and how mistakes are answered."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from socketserver import BaseRequestHandler, TCPServer

import pytest

from gpu_mem_calculator import __version__
from gpu_mem_calculator.cli.main import VERBS, is_source
from gpu_mem_calculator.cli.output import write
from gpu_mem_calculator.pytorch.replay.native_library import library

from .conftest import Command

REPLAY = "C" if library() else "Python"


def test_version(command: Command) -> None:
    """--version prints the package's version, and which replay runs."""
    assert command("--version") == (0, f"gpu-mem-calc {__version__} (replay in {REPLAY})\n", "")


def test_nothing_gives_the_help(command: Command) -> None:
    """Without a word, the help names every command."""
    answer = command()
    assert answer.code == 0
    assert all(f"\n  {verb} " in answer.out for verb in VERBS)


@pytest.mark.parametrize("words", [["help"], ["--help"], ["-h", "quick"]])
def test_help_alone_is_the_help(command: Command, words: list[str]) -> None:
    """`help` takes a command, or none."""
    assert command(*words) == command()


@pytest.mark.parametrize("verb", VERBS)
def test_each_command_has_help_with_an_example(command: Command, verb: str) -> None:
    """Every command's help ends in commands to copy, and fits a terminal."""
    answer = command(verb, "--help")
    assert answer.code == 0
    assert f"gpu-mem-calc {verb} " in answer.out.partition("examples:")[2]
    assert max(map(len, answer.out.splitlines())) <= 80


def test_unknown_command_names_the_nearest(command: Command) -> None:
    """A misspelt command is one line on stderr and exit code 2."""
    said = "gpu-mem-calc: 'quik' is not a known command; did you mean 'quick'?\n"
    assert command("quik", "7") == (2, "", said)


@pytest.mark.parametrize("verb", ["trace", "serve"])
def test_commands_that_do_not_exist_are_refused(command: Command, verb: str) -> None:
    """A command that this version does not have is refused in one line."""
    answer = command(verb, "llama2-7b")
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["quick"], "quick needs one MODEL"),
        (["quick", "", "--gpu", "4090"], "quick needs one MODEL"),
        (["explain", ""], "quick needs one MODEL"),
        (["quick", "llama3.1-8b", "on", "4090?"], "'4090' is a card, not a part of the model's"),
        (["quick", "7", "--tensor-parallel-size", "2"], "--tp is an axis of Megatron; use"),
        (["plan", "gpt2", "--serve", "--gpus", "x"], "--gpus 'x' must be a whole number"),
        (["backtest", "README.md"], "README.md: no line begins an object; a file of runs has"),
        (["infer", "gpt2", "--gpu", "v100", "--quantization", "fp8"], "use an engine_version"),
        (["quick", "7", "8"], "'7 8' is neither a preset nor a file"),
        (["quick", "7", "--gpuss", "8"], "not an option of quick; did you mean '--gpus'?"),
        (["quick", "7", "--gpus", "0"], "--gpus '0' must be a whole number, 1 or more"),
        (["quick", "7", "--gpus"], "--gpus needs a value"),
        (["quick", "7", "--gpu-mem", "big"], "--gpu-mem 'big' must be a number above 0"),
        (["quick", "7", "--format", "jsn"], "table, json, yaml, html; did you mean 'json'?"),
        (["quick", "7", "--format", "a b"], "--format 'a b' is not one of table, json, yaml, html"),
        (["quick", "0"], "'0' is no size; give a size from"),
        (["quick", "llama2-7bb"], "did you mean 'llama2-7b'?"),
        (["quick", "7", "--engine", "deepspede"], "did you mean 'deepspeed'?"),
        (["quick", "7", "--gpu", "rtx"], "choose one, such as"),
        (["quick", "7", "--dtype", "int3"], "is not one of bf16, fp16, fp32"),
        (["quick", "7", "--set", "batch=3"], "must be section.key=value"),
        (["quick", "7", "--set", "training.batchsize=3"], "did you mean 'batch_size'?"),
        (["quick", "7", "--explain", "--format", "html"], "choose table or json"),
        (["calculate"], "give one of --config FILE and --preset NAME"),
        (["calculate", "--config", "x", "--preset", "gpt2"], "give one of --config FILE and"),
        (["calculate", "--config", "missing.json"], "missing.json: no such file"),
        (["calculate", "--preset", "gpt2", "--output", "no/such/folder/x"], "cannot be written"),
        (["validate", "configs/my_config.json"], "no such file"),
        (["explain"], "give one of --config FILE and --preset NAME"),
        (["deepspeed"], "give one of --num-parameters N and --model-path P"),
        (["deepspeed", "--num-parameters", "many"], "--num-parameters='many' must be a count"),
        (["presets", "nosuchmodel"], "no name has 'nosuchmodel' in it"),
        (["gpus", "nosuchcard"], "no name has 'nosuchcard' in it"),
    ],
)
def test_a_mistake_is_one_sentence(command: Command, words: list[str], said: str) -> None:
    """Bad input: one line on stderr that says what to do, nothing on stdout, exit code 2."""
    answer = command(*words)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("gpu-mem-calc: ")
    assert answer.err.count("\n") == 1
    assert said in answer.err


@pytest.mark.parametrize("text", ["[]", "7", "null", '"run"', "{", "", '{"model": 3}'])
@pytest.mark.parametrize("verb", ["calculate", "explain"])
def test_a_broken_run_file_is_one_sentence(
    command: Command, tmp_path: Path, verb: str, text: str
) -> None:
    """A run file that is not one gives sentences, not a traceback."""
    file = tmp_path / "run.json"
    file.write_text(text)
    answer = command(verb, "--config", str(file))
    assert (answer.code, answer.out) == (2, "")
    assert all(line.startswith("gpu-mem-calc: ") for line in answer.err.splitlines())
    assert answer.err


def _shell(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = {**os.environ, **environment, "PY": sys.executable}
    return subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=settings, check=False
    )


def test_module_runs_as_a_command() -> None:
    """`python -m gpu_mem_calculator` is the same command."""
    done = _shell('"$PY" -m gpu_mem_calculator --version')
    assert done.stdout == f"gpu-mem-calc {__version__} (replay in {REPLAY})\n"


def test_version_says_that_the_library_is_left_out() -> None:
    """The variable that does so is the user's."""
    done = _shell('"$PY" -m gpu_mem_calculator --version', GPU_MEM_CALC_REPLAY="python")
    assert done.stdout == f"gpu-mem-calc {__version__} (replay in Python)\n"


def test_a_reader_that_leaves_is_no_error() -> None:
    """Into `true`, which reads nothing, a long answer ends quietly."""
    done = _shell('"$PY" -m gpu_mem_calculator gpus --format json | true; echo ${PIPESTATUS[0]}')
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_a_stream_without_unicode_gets_ascii() -> None:
    """Where bars cannot be shown, plain characters stand for them."""
    done = _shell('"$PY" -m gpu_mem_calculator quick gpt2', PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "####" in done.stdout


@pytest.mark.parametrize("words", [("gpt2",), ("llama3.2-1b", "--qlora", "--gpu", "4090")])
def test_starting_imports_neither_numpy_nor_yaml(words: tuple[str, ...]) -> None:
    """A piped report needs none of the slow packages, also where other tools' files are written."""
    script = (
        f"import sys; from gpu_mem_calculator.cli.main import main; main(['quick', *{words}]);"
        "print([m for m in ('numpy', 'yaml', 'torch') if m in sys.modules])"
    )
    assert _shell(f'"$PY" -c "{script}"').stdout.endswith("[]\n")


def test_a_terminal_gets_no_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipe gets the text as it is."""
    write("a\x9b2J\n\tb")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    write("a\x9b2J\n\tb")
    assert capsys.readouterr().out == "a\x9b2J\n\tb\na\\u009b2J\n\tb\n"


def test_a_servers_status_line_cannot_steer_the_terminal(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not HTTP is quoted without its control bytes."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("gpu_mem_calculator.catalog.hub.request.TRIES", 1)

    class Rude(BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(4096)
            self.request.sendall(b"\x1b[2J\x9b31mhello\r\n\r\n")

    with TCPServer(("127.0.0.1", 0), Rude) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
        answer = command("quick", "owner/model")
    assert answer.code == 2
    assert "hello" in answer.err
    assert answer.err.rstrip("\n").isprintable()


@pytest.mark.parametrize(
    "words",
    [
        ["calculate", "--function", "m:f", "--record", "no/x"],
        ["calculate", "--preset", "gpt2", "--output", "no/x"],
        ["explain", "--function", "m:f", "--record", "no/x"],
        ["quick", "gpt2", "--output", "no/x"],
        ["infer", "gpt2", "--output", "no/x"],
        ["trace", "--preset", "gpt2", "--snapshot", "no/x"],
        ["measure", "--preset", "gpt2", "--snapshot", "no/x"],
        ["backtest", "runs.jsonl", "--picture", "no/x"],
        ["deepspeed", "--num-parameters", "7B", "--output", "no/x"],
        ["presets", "--output", "no/x"],
        ["gpus", "--output", "no/x"],
        ["schema", "--output", "no/x"],
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    words: list[str], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every command, with the option and the path in the sentence."""

    def work(_: object) -> int:
        raise AssertionError("it has begun")

    monkeypatch.setattr(f"gpu_mem_calculator.cli.{words[0]}.run", work)
    why = f"gpu-mem-calc: {words[-2]} no/x: cannot be written, No such file or directory\n"
    assert command(*words) == (2, "", why)


@pytest.mark.parametrize(
    ("word", "is_one"),
    [
        ("vllm serve Qwen/Qwen3-8B", True),
        ("ollama run llama3.1:8b", True),
        ("trl sft --model_name_or_path gpt2", True),
        ("train.sh", True),
        ("-", True),
        ("llama 3.1 8b", False),
        ("Mistral 7B instruct", False),
        ("llama2-7b", False),
    ],
)
def test_a_command_in_quotes_is_no_models_name(word: str, is_one: bool) -> None:
    """And a model's name may have spaces."""
    assert is_source(word) is is_one
