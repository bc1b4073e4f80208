"""An answer grows on a terminal, and ends as the text that a pipe gets."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

COLUMNS = 80
PROGRAM = (sys.executable, "-m", "gpu_mem_calculator.cli.main")
TOO_LARGE = ("quick", "7", "--gpu", "a100-80gb")
FITS = ("quick", "llama3.2-1b", "--qlora", "--gpu", "4090")
ERASE = "\r\x1b\\[2K"
SLOW = """
import time
from gpu_mem_calculator.advice.training import answers
from gpu_mem_calculator.cli.main import main
answers.longest_length = lambda estimate: time.sleep(60)
main()
"""
PLAN = ("plan", "qwen2.5-0.5b", "--gpu", "4090", "--gpus", "2", "--engine", "fsdp")
PLAN = (*PLAN, "--seq-len", "1024", "--global-batch", "16", "--fix", "training.loss=full")
PLAN = (*PLAN, "--fix", "engine.cpu_offload=false", "--fix", "training.batch_size=1")
SOME_ARE_SLOW = """
import sys
import time
from gpu_mem_calculator.advice.planner.training import trials
from gpu_mem_calculator.cli.main import main
tried_run, runs = trials.tried_run, []
def tried(*given):
    runs.append(given)
    if len(runs) > SLOW:
        print("\\nSLOW", file=sys.stderr, flush=True)
        time.sleep(60)
    return tried_run(*given)
trials.tried_run = tried
main()
"""
CODE = re.compile(r"\x1b\[(\??\d*(?:;\d+)*)([A-Za-z])")


class Terminal:
    """What a terminal shows: its rows, scrolled ones included, after the text so far."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.lines, self.row, self.column = [""], 0, 0
        self.rest = ""

    def feed(self, text: str) -> None:
        """Interpret some text; an escape code may continue in the next one."""
        text = self.rest + text
        at = 0
        while at < len(text):
            code = CODE.match(text, at)
            if code is not None:
                self._control(code[2], code[1])
                at = code.end()
            elif text[at] == "\x1b":
                break
            else:
                self._put(text[at])
                at += 1
        self.rest = text[at:]

    def _put(self, char: str) -> None:
        if char == "\r":
            self.column = 0
        elif char == "\n":
            self._down()
        else:
            if self.column == self.columns:
                self._down()
                self.column = 0
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + char + line[self.column + 1 :]
            self.column += 1

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append("")

    def _control(self, letter: str, number: str) -> None:
        if letter == "F":  # no further up than the first row that is on the screen
            top = max(0, len(self.lines) - self.rows)
            self.row, self.column = max(top, self.row - int(number or 1)), 0
        elif letter == "J":
            del self.lines[self.row + 1 :]
            self.lines[self.row] = self.lines[self.row][: self.column]
        elif letter == "K":
            self.lines[self.row] = ""

    @property
    def text(self) -> str:
        """All rows."""
        return "\n".join(line.rstrip() for line in self.lines)


@contextmanager
def on_terminal(
    words: tuple[str, ...], program: tuple[str, ...] = PROGRAM, rows: int = 40, **variables: str
) -> Iterator[tuple[subprocess.Popen[bytes], Iterator[str]]]:
    """A command on a terminal, and what the terminal shows after each piece of output."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", rows, COLUMNS, 0, 0))
    plain = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
    env = {**plain, "TERM": "xterm-256color", **variables}
    process = subprocess.Popen([*program, *words], stdout=follower, stderr=follower, env=env)
    os.close(follower)

    def shown() -> Iterator[str]:
        terminal, decoder = Terminal(COLUMNS, rows), getincrementaldecoder("utf-8")()
        while True:
            try:
                piece = os.read(leader, 65536)
            except OSError:  # Linux says so at the end
                break
            written = decoder.decode(piece)
            for text in re.split(f"(?={ERASE})", written):  # several writes may be together
                terminal.feed(text)
                yield terminal.text
        process.wait(60)

    try:
        yield process, shown()
    finally:
        process.kill()
        os.close(leader)


def printed(words: tuple[str, ...]) -> str:
    """What a pipe gets."""
    ended = subprocess.run([*PROGRAM, *words], capture_output=True, text=True)
    assert ended.returncode in (0, 1)
    return ended.stdout


def piped(words: tuple[str, ...]) -> str:
    """What a pipe gets, on the rows of a terminal."""
    screen = Terminal(COLUMNS, 10**6)
    screen.feed(printed(words).replace("\n", "\r\n"))
    return screen.text


@pytest.mark.parametrize(
    "words",
    [TOO_LARGE, FITS, (*TOO_LARGE, "--long"), (*FITS, "--long")],
    ids=["too large", "fits", "too large, long", "fits, long"],
)
def test_a_terminal_ends_with_the_text_of_a_pipe(words: tuple[str, ...]) -> None:
    """Colours and what was replaced aside; the verdict is there while something is looked for."""
    with on_terminal(words) as (_, shown):
        screens = list(shown)
    assert screens[-1] == piped(words)
    verdict = screens[-1].splitlines()[0]
    assert any(text.startswith(verdict) and text.endswith(" ...") for text in screens[:-1])


@pytest.mark.parametrize("rows", [8, 24])
def test_a_small_terminal_repeats_no_line(rows: int) -> None:
    """Lines that cannot be replaced, since they have scrolled away, are shown at the end."""
    with on_terminal(TOO_LARGE, rows=rows) as (_, shown):
        assert list(shown)[-1] == piped(TOO_LARGE)


def test_a_command_that_is_checked_grows_too() -> None:
    """Its answer, and below at the end how it was read."""
    train = ("trl", "sft", "--model_name_or_path", "Qwen/Qwen2.5-7B", "--dataset_name", "x/y")
    words = ("check", "--gpu", "4090", *train)
    with on_terminal(words) as (process, shown):
        screens = list(shown)
    assert process.returncode == 1
    assert screens[-1] == piped(words)
    assert any("looking for changes" in text for text in screens[:-1])


def test_nothing_of_progress_where_no_escape_codes_are_understood() -> None:
    """A dumb terminal gets what a pipe gets, and so does a file."""
    with on_terminal(TOO_LARGE, TERM="dumb") as (_, shown):
        screens = list(shown)
    assert screens[-1] == piped(TOO_LARGE)
    assert not any("looking for" in text for text in screens)


def test_an_interrupt_keeps_what_is_there() -> None:
    """Ctrl-C ends the command with the lines so far, without the one about what is looked for."""
    with on_terminal(TOO_LARGE, (sys.executable, "-c", SLOW)) as (process, shown):
        for text in shown:
            if text.endswith("looking for the longest sequence that fits ..."):
                process.send_signal(signal.SIGINT)
                last = text
        ended = text
    assert process.returncode == -signal.SIGINT  # a shell says 130
    assert ended == last.rpartition("\n")[0] + "\n"
    assert ended.startswith("does not fit: ")


def interrupted_plan(*words: str, after: int = 2) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a plan that is interrupted after some set-ups."""
    program = (sys.executable, "-c", SOME_ARE_SLOW.replace("> SLOW", f"> {after}"))
    process = subprocess.Popen(
        [*program, *PLAN, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert [process.stderr.readline() for _ in range(2)] == ["\n", "SLOW\n"]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_an_interrupted_plan_shows_the_plans_so_far() -> None:
    """They are as in the whole answer, the list says that it is not complete, and so does stderr;
    all of it in data, too.
    """
    code, out, err = interrupted_plan()
    assert (code, err) == (130, "gpu-mem-calc: interrupted; these are the plans so far\n")
    assert out.count("FSDP2") >= 2
    assert "limit: the search was interrupted: the list and its front are not complete" in out
    code, out, _ = interrupted_plan("--format", "json")
    whole = json.loads(printed((*PLAN, "--format", "json")))
    found = json.loads(out)
    assert code == 130
    assert len(found["plans"]) == 2
    assert [one["run"] for one in found["plans"]] == [one["run"] for one in whole["plans"][:2]]
    assert any("interrupted" in one for one in found["limits"])
    assert not any("interrupted" in one for one in whole["limits"])


def test_a_plan_that_is_interrupted_before_it_has_any_says_so() -> None:
    """One sentence, and nothing else."""
    sentence = "gpu-mem-calc: interrupted before a set-up was found\n"
    assert interrupted_plan(after=0) == (130, "", sentence)


def test_the_first_plan_is_on_the_terminal_while_others_are_replayed() -> None:
    """Above a bar with the phase, what is done and the best seconds; Ctrl-C keeps it. One set-up
    is replayed before the whole space is searched.
    """
    program = (sys.executable, "-c", SOME_ARE_SLOW.replace("> SLOW", "> 3"))
    with on_terminal(PLAN, program, rows=60) as (process, shown):
        last = next(text for text in shown if text.endswith("SLOW\n"))
        process.send_signal(signal.SIGINT)
        *_, ended = shown
    assert process.returncode == 130
    first = last.splitlines()
    assert first[0].startswith("qwen2.5-0.5b on 2 ×")
    assert any(one.startswith("FSDP2") for one in first)
    assert re.search(r"replaying, 2 of 20,( \d+ s left,)? best step [\d.]+ s", last)
    assert ended.startswith("\n".join(first[:3]))
    assert "limit: the search was interrupted" in ended
    assert "Traceback" not in ended


def test_a_plan_on_a_terminal_ends_with_the_text_of_a_pipe() -> None:
    """Nothing of the bar is left."""
    with on_terminal(PLAN, rows=60) as (process, shown):
        screens = list(shown)
    assert process.returncode == 0
    assert screens[-1] == piped(PLAN)
    assert any("searching, " in text for text in screens)
