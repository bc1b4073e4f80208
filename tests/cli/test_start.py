"""`check --run` becomes the command: its signals, its exit code, nothing that outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.corpus import sampled

from .conftest import Command

OPTIONS = ("-m", "/models/Qwen3-8B-Q4_K_M.gguf", "--ctx-size", "4096", "--fit", "off")
CHECK = (sys.executable, "-m", "gpu_mem_calculator", "check", "--run", "--gpu", "h100")
# Writes its process id and waits; a signal takes it a second, as a last checkpoint would.
STAND_IN = f"""#!{sys.executable}
import os, signal, time
def save(number, frame):
    time.sleep(1)
    print("saved", number, flush=True)
    os._exit(number + 60)
for name in ("SIGINT", "SIGTERM", "SIGHUP"):
    signal.signal(getattr(signal, name), save)
print("running", os.getpid(), flush=True)
time.sleep(60)
"""
# Prints its words and the signals that it inherits as ignored, one bit each.
SHELL = """#!/bin/sh
printf '%s,' "$@"
grep SigIgn /proc/self/status
exit $ENDS
"""
SIGPIPE_BIT = 1 << signal.SIGPIPE - 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a program called as the server."""
    program = tmp_path / "llama-server"
    program.write_text(STAND_IN)
    program.chmod(0o755)
    return tmp_path


def started(folder: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    """`check --run` of a command, with the program on the PATH."""
    environment = os.environ | variables | {"PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.Popen(
        [*CHECK, *words],
        env=environment,
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


@pytest.mark.parametrize("name", sampled(["SIGINT", "SIGTERM", "SIGHUP"], keep=1))
def test_a_signal_reaches_the_command_which_ends_in_its_own_time(folder: Path, name: str) -> None:
    """It is the same process, so nobody can kill it early or leave it as an orphan."""
    process = started(folder, "llama-server", *OPTIONS)
    assert process.stdout is not None
    line = next(one for one in process.stdout if one.startswith("running"))
    assert int(line.split()[1]) == process.pid
    number = getattr(signal, name)
    os.killpg(process.pid, number) if name == "SIGINT" else process.send_signal(number)
    out, _ = process.communicate(timeout=20)
    assert out == f"saved {int(number)}\n"
    assert process.returncode == number + 60


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_its_exit_code_and_words_are_its_own(folder: Path, code: int) -> None:
    """Words, empty ones too, and a variable in front are passed on; the report comes first."""
    (folder / "llama-server").write_text(SHELL)
    words = (f"ENDS={code}", "llama-server", *OPTIONS, "--alias", "")
    out, err = (process := started(folder, *words)).communicate(timeout=60)
    assert process.returncode == code, err
    report, last = out.splitlines()[:-1], out.splitlines()[-1]
    assert last.startswith(",".join([*OPTIONS, "--alias", "", "SigIgn:"]))
    assert int(last.split()[-1], 16) & SIGPIPE_BIT == 0
    assert any("fits" in line for line in report)


def test_nothing_is_started_that_does_not_fit(folder: Path) -> None:
    """The exit code is the verdict's."""
    process = started(folder, "--set", "inference.max_seq_len=9000000", "llama-server", *OPTIONS)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "not started" in err
    assert "running" not in out


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("go.sh", "'go.sh' is a script; write --run bash go.sh"),
        ("deployment.yaml", "'deployment.yaml' is a file; leave --run out"),
        ("Modelfile", "'Modelfile' is a file; leave --run out"),
        ("vllm-that-nobody-has", "is no program on the PATH; install it, or leave --run out"),
    ],
)
def test_what_is_no_command_is_refused_before_the_estimate(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    """A manifest, a script without its shell, and a program that is not there."""
    monkeypatch.chdir(tmp_path)
    Path(name).write_text("vllm serve Qwen/Qwen2.5-0.5B\n")
    answer = command("check", "--run", "--gpu", "h100", name)
    assert answer.code == 2
    assert said in answer.err
    assert answer.out == ""


def test_a_program_that_cannot_be_started_is_one_sentence(folder: Path) -> None:
    """A file that is executable, and no program."""
    (folder / "llama-server").write_bytes(b"\x7fELF no program")
    process = started(folder, "llama-server", *OPTIONS)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err == "gpu-mem-calc: 'llama-server' cannot be started: Exec format error\n"


def test_ctrl_c_ends_a_command_at_once(tmp_path: Path) -> None:
    """Also while modules are loaded, where Python would lose the exception."""
    code = "import _signal, gpu_mem_calculator.cli.main as m, sys\n"
    code += "m._exit_code = lambda words: (_signal.raise_signal(_signal.SIGINT), 0)[1]\n"
    code += "sys.argv = ['gpu-mem-calc', 'quick', '7B']\nm.main()"
    begin = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == -signal.SIGINT
    assert ended.stderr == ""
    assert time.monotonic() - begin < 30
