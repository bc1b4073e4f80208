"""A function in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.lab.measure.child_process import ChildOutcome, Tell, run_in_child
from gpu_mem_calculator.runfile.text.errors import InputError


def outcome(function: Any, argument: Any = None, timeout: float = 20.0) -> ChildOutcome:
    """What became of a function in a child."""
    return run_in_child(function, argument, timeout, lambda _: None)


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has collected yet counts as ended."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_the_answer_comes_back_from_another_process() -> None:
    """The value is the function's, and it ran elsewhere."""
    found = outcome(lambda argument, tell: {"pid": os.getpid(), "argument": argument}, [1, "x"])
    assert found.error == ""
    assert found.value["argument"] == [1, "x"]
    assert found.value["pid"] != os.getpid()


def test_what_is_told_is_heard_in_order_and_before_the_end() -> None:
    """Messages arrive while the child is still at work, also where it never answers."""
    heard: list[Any] = []

    def talk(_: Any, tell: Tell) -> None:
        for number in range(3):
            tell({"phase": f"s{number}"})
        os.kill(os.getpid(), signal.SIGTERM)

    found = run_in_child(talk, None, 20.0, heard.append)
    assert [message["phase"] for message in heard] == ["s0", "s1", "s2"]
    assert found.error == "the process was ended by SIGTERM"


def test_an_answer_larger_than_a_pipe_arrives_whole() -> None:
    """A megabyte is more than a pipe holds at once."""
    assert len(outcome(lambda argument, tell: "x" * 2**20).value) == 2**20


def test_an_exception_is_one_line_with_its_classes_and_a_log() -> None:
    """What is needed to judge a failure, and the traceback beside it."""

    def fail(_: Any, tell: Tell) -> None:
        print("before it", flush=True)
        os.write(1, b"raw print\n")
        raise KeyError("first\nsecond")

    found = outcome(fail)
    assert found.error.startswith("KeyError: ")
    assert "LookupError" in found.kinds
    assert "Traceback" in found.log
    assert "raw print" in found.log
    assert found.problems == ()


def test_sentences_about_the_input_come_back_as_such() -> None:
    """Bad input is told apart from a failure."""

    def refuse(_: Any, tell: Tell) -> None:
        raise InputError(["one", "two"])

    assert outcome(refuse).problems == ("one", "two")


def test_exit_codes_and_kills_are_told_apart() -> None:
    """A process that leaves by itself, and one that the kernel takes."""
    left = outcome(lambda argument, tell: os._exit(7))
    taken = outcome(lambda argument, tell: os.kill(os.getpid(), signal.SIGKILL))
    assert left.error == "the process ended with exit code 7"
    assert taken.error == "the process was ended by SIGKILL, perhaps for lack of host memory"


def test_a_child_that_hangs_is_stopped_with_all_that_it_started() -> None:
    """After the timeout neither the child nor its own children are left."""
    heard: list[Any] = []

    def hang(_: Any, tell: Tell) -> None:
        other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        tell([os.getpid(), other.pid])
        time.sleep(60)

    start = time.monotonic()
    found = run_in_child(hang, None, 1.0, heard.append)
    assert found.kinds == ("Timeout",)
    assert found.error == "still running after 1 s, and stopped"
    assert time.monotonic() - start < 10
    assert all(gone(pid) for pid in heard[0])


def test_a_forked_grandchild_does_not_keep_the_parent_waiting() -> None:
    """The answer counts, not the end of the pipe that others may hold open."""

    def leave_one_behind(_: Any, tell: Tell) -> int:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        return 5

    start = time.monotonic()
    assert outcome(leave_one_behind).value == 5
    assert time.monotonic() - start < 10


def test_an_interrupt_while_listening_stops_the_child() -> None:
    """Ctrl-C ends the child before it goes on."""
    heard: list[int] = []

    def hear(message: int) -> None:
        heard.append(message)
        raise KeyboardInterrupt

    def talk(_: Any, tell: Tell) -> None:
        tell(os.getpid())
        time.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        run_in_child(talk, None, 20.0, hear)
    assert gone(heard[0])


def test_a_child_ends_with_a_killed_parent(tmp_path: Path) -> None:
    """Nothing stays on the card when the command itself is killed."""
    note = tmp_path / "pid"
    code = (
        "import os, time, sys\n"
        "from gpu_mem_calculator.lab.measure.child_process import run_in_child\n"
        "def work(path, tell):\n"
        "    tell(os.getpid()); time.sleep(60)\n"
        f"run_in_child(work, None, 60, lambda pid: open({str(note)!r}, 'w').write(str(pid)))\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    for _ in range(500):
        if note.exists() and note.read_text():
            break
        time.sleep(0.02)
    parent.kill()
    parent.wait()
    assert gone(int(note.read_text()))
