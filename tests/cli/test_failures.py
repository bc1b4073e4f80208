"""What ends a command badly: streams that are closed or full, odd files, and faults of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_mem_calculator.cli.failures import wants_json
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.runfile.text.files import read_text

from .conftest import Command

QUICK = "quick gpt2"
FAULT = """
import sys
from gpu_mem_calculator.cli import main, quick
def broken(args):
    raise KeyError("hf_private")
quick.run = broken
sys.argv = ["gpu-mem-calc", *{words!r}]
main.main()
"""


def shell(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A script of bash, in which `g` is the command."""
    command = f'g() {{ "{sys.executable}" -m gpu_mem_calculator "$@"; }}\n{script}'
    environment = {**os.environ, **variables}
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment)


@pytest.mark.parametrize(
    "words", [QUICK, "quick --help", "--help", "--version", "gpus -f json", "quick nosuch -fjson"]
)
@pytest.mark.parametrize("stream", [">/dev/full", ">&-"])
def test_an_answer_that_cannot_be_written_is_74(words: str, stream: str) -> None:
    """One sentence on stderr, whatever the answer is: a table, help, an error as JSON."""
    ended = shell(f"g {words} {stream}")
    assert ended.returncode == 74
    assert ended.stderr.splitlines()[-1].startswith("gpu-mem-calc: standard output cannot be")
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("stream", ["2>/dev/full", "2>&-"])
def test_a_sentence_that_cannot_be_written_is_74(stream: str) -> None:
    """Where there is nothing to say on stderr, it is not missed."""
    assert shell(f"g quick nosuchmodel {stream}").returncode == 74
    fine = shell(f"g {QUICK} {stream}")
    assert fine.returncode == 0
    assert fine.stdout == shell(f"g {QUICK}").stdout


def test_all_streams_closed() -> None:
    """No crash without any stream."""
    assert shell(f"g {QUICK} <&- >&- 2>&-").returncode == 74


def test_a_closed_stream_does_not_end_up_in_a_file(tmp_path: Path) -> None:
    """The file that is opened first does not get the number of the closed stream."""
    file = tmp_path / "out.json"
    shell(f"g {QUICK} -f json -o {file} <&- >&- 2>&-")
    assert json.loads(file.read_text())["fits_on_gpu"] in (True, False)


def test_a_full_disk_is_74(tmp_path: Path) -> None:
    """Where the path was fine before the work."""
    ended = shell(f"g {QUICK} -o /dev/full")
    assert ended.returncode == 74
    assert "--output /dev/full: cannot be written, No space left on device" in ended.stderr
    assert shell(f"g {QUICK} -o {tmp_path}/none/x").returncode == 2


def test_a_closed_input_is_bad_input() -> None:
    """One sentence, exit code 2."""
    ended = shell("g calculate - <&-")
    assert ended.returncode == 2
    assert ended.stderr == "gpu-mem-calc: standard input: cannot be read, Bad file descriptor\n"


def test_a_file_without_anything_to_read_yet(tmp_path: Path) -> None:
    """As /proc/kmsg: a read that would block is a sentence, not None."""
    leader, follower = os.openpty()
    try:
        with pytest.raises(InputError, match="cannot be read, it has nothing to read"):
            read_text(os.ttyname(follower))
    finally:
        os.close(leader)
        os.close(follower)


@pytest.mark.parametrize("verb", ["validate", "backtest", "calculate", "check"])
@pytest.mark.parametrize("path", ["/proc/self/mem", "/dev/zero", "/proc", "/dev/null", "/dev/tty"])
def test_odd_files_are_bad_input(verb: str, path: str) -> None:
    """One sentence each, exit code 2; `check` may say that it cannot tell."""
    ended = shell(f"g {verb} {path}")
    assert ended.returncode in ((2, 3) if verb == "check" else (2,))
    assert "Traceback" not in ended.stderr


def test_a_fault_of_ours_is_70() -> None:
    """One sentence: what, where, how to report it; no value, no traceback unless asked for."""
    program = [sys.executable, "-c", FAULT.format(words=["quick", "gpt2"])]
    ended = subprocess.run(program, capture_output=True, text=True)
    assert ended.returncode == 70
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1
    for said in ("a fault of gpu-mem-calc", "KeyError", "please report", "GPU_MEM_CALC_TRACEBACK"):
        assert said in ended.stderr
    assert "hf_private" not in ended.stderr
    asked = os.environ | {"GPU_MEM_CALC_TRACEBACK": "1"}
    traced = subprocess.run(program, capture_output=True, text=True, env=asked)
    assert traced.returncode == 70
    assert "Traceback (most recent call last)" in traced.stderr


def test_a_fault_of_ours_is_json_where_json_was_asked_for() -> None:
    """The same object as bad input, with its exit code."""
    program = [sys.executable, "-c", FAULT.format(words=["quick", "gpt2", "-fjson"])]
    ended = subprocess.run(program, capture_output=True, text=True)
    assert ended.returncode == 70
    error = json.loads(ended.stdout)["error"]
    assert error["exit_code"] == 70
    assert len(error["problems"]) == 1


@pytest.mark.parametrize("error", [RecursionError, MemoryError, SystemExit, OSError, ValueError])
def test_no_exception_is_exit_code_1(
    command: Command, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """1 means that it does not fit, and nothing else."""
    from gpu_mem_calculator.cli import quick

    def broken(args: object) -> int:
        raise error(1)

    monkeypatch.setattr(quick, "run", broken)
    answer = command("quick", "gpt2")
    assert answer.code == 70
    assert error.__name__ in answer.err


@pytest.mark.parametrize(
    ("words", "wants"),
    [
        ("quick x -fjson", True),
        ("quick x -f json", True),
        ("quick x --format=json", True),
        ("quick x --format json", True),
        ("quick x -f table", False),
        ("check -fjson vllm serve x", True),
        ("check vllm serve x --format json", False),
        ("trace -- python train.py -f json", False),
    ],
)
def test_who_asks_for_json_gets_errors_as_json(words: str, wants: bool) -> None:
    """However it is written; the words of another program do not count."""
    assert wants_json(words.split()) is wants
