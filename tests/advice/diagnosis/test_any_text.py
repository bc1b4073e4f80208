"""Any text has an answer, and what is secret in it is not printed again."""

from __future__ import annotations

import json
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_mem_calculator.advice.diagnosis.diagnose import diagnose
from gpu_mem_calculator.advice.diagnosis.own_words import in_own_options
from gpu_mem_calculator.cli.main import main
from gpu_mem_calculator.report.diagnosis import diagnosis_data, diagnosis_lines
from gpu_mem_calculator.runfile.text.files import decode_printed
from gpu_mem_calculator.tools.logs.read import read_log, rows, tables

SLOW = 25  # CPU seconds of what is quadratic in a line, on a machine that does other work too
EXAMPLES = [
    one["text"] for _, table in tables() for row in table["line"] for one in row["examples"]
]
PIECES = st.one_of(
    st.sampled_from(EXAMPLES),
    st.sampled_from(sorted({row.words for row in rows()})),
    st.text(max_size=40),
    st.sampled_from(
        ['  File "a.py", line 3, in f\n    x\n', "vllm serve -x", "\x1b[31m", "\r", "\0"]
    ),
)


@given(st.lists(PIECES, max_size=12).map("\n".join))
def test_any_mixture_of_lines_has_an_answer(text: str) -> None:
    """As text and as data."""
    found = diagnose(text)
    assert list(diagnosis_lines(found))
    assert json.dumps(diagnosis_data(found))


@given(st.binary(max_size=300))
def test_any_bytes_have_an_answer(data: bytes) -> None:
    """What is no UTF-8 is replaced."""
    assert diagnose(data.decode("utf-8", errors="replace")).summary


def test_secrets_are_not_printed_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither of a command in the text nor of a line that is shown."""
    path = tmp_path / "log.txt"
    path.write_text(
        "HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz012345 vllm serve Qwen/Qwen3-8B"
        " --api-key sk-1234567890abcdef\n"
        "RuntimeError: CUDA error: out of memory --api-key sk-1234567890abcdef"
        " https://user:pass12345@host/x hf_abcdefghijklmnopqrstuvwxyz012345\n"
    )
    main(["diagnose", str(path), "--format", "json"])
    printed = capsys.readouterr()
    for secret in ("hf_abcdefghij", "sk-1234567890", "pass12345"):
        assert secret not in printed.out + printed.err


def test_a_model_that_cannot_be_trained_is_no_fault() -> None:
    """The text names one of which only serving is modelled."""
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB."
    assert diagnose(f"loading meta-llama/Llama-3.2-11B-Vision-Instruct\n{oom}").summary


def test_a_log_without_line_ends_takes_no_longer() -> None:
    """Although it is one line of frames, figures and errors."""
    pieces = ('File "a.py", line 3, in f x = y ', *EXAMPLES)
    dense = " ".join(one.replace("\n", " ") for one in pieces)
    text = dense * (5 * 2**20 // len(dense)) + " CUDA out of memory. Tried to allocate 2.00 GiB"
    begin = process_time()
    assert diagnose(text).cause is not None
    assert process_time() - begin < SLOW


@pytest.mark.parametrize("piece", [" ", "\t", "\n", " \\\n", "1", "-a ", "`", "\0"])
def test_one_sign_again_and_again_takes_no_longer(piece: str) -> None:
    """No pattern tries each place with each end."""
    begin = process_time()
    assert diagnose(piece * (2**20 // len(piece))).cause is None
    assert process_time() - begin < SLOW


def test_what_is_left_out_of_many_lines_is_in_the_middle() -> None:
    """The first and the last of what stands a thousand times, and how many more; a line that stands
    once in many millions of characters, and differs in digits alone, is found.
    """
    line = "CUDA out of memory. Tried to allocate {}.00 GiB\n"
    log = read_log("".join(line.format(one) for one in range(1, 1001)))
    lines = [one.line for one in log.of("torch_oom")]
    assert (lines[0], lines[-1], len(lines)) == (1, 1000, 500)
    assert log.left_out["torch_oom"] == 500
    steps = [f"step {number} loss 1.0\n" for number in range(600_000)]
    steps[300_000] = line.format(77)
    (found,) = read_log("".join(steps)).of("torch_oom")
    assert (found.line, found.bytes_of("tried")) == (300_001, 77 * 2**30)


def test_bytes_that_are_no_text_are_read_as_ascii() -> None:
    """A line among them is found."""
    noise = bytes(range(128, 256)) * 2**14
    data = noise + b"\nCUDA out of memory. Tried to allocate 2.00 GiB\n" + noise
    assert diagnose(data).cause is not None
    assert decode_printed("2 × 3".encode() * 2**19).startswith("2 × 3")


def test_a_remedy_with_other_signs_in_its_parentheses_is_read_at_once() -> None:
    """Each word can belong to a list in one way."""
    sentence = f"Merge ({'a, ' * 40}'b')."
    assert in_own_options(sentence, ["vllm"]) == sentence
