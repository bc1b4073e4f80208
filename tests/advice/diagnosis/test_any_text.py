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
from gpu_mem_calculator.web.agents.answers import ANSWERS
from gpu_mem_calculator.web.agents.tools import DiagnoseArguments
from gpu_mem_calculator.web.worker import TASKS
from tests.corpus import sampled

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


MARK = "Zq7hunter2Kx9"  # in every secret
SECRETS = (
    f"hf_{MARK}Aa11Bb22Cc33",
    f"sk-ant-api03-{MARK}Aa11",
    f"ghp_{MARK}Aa11Bb22Cc33",
    f'password="{MARK}"',
    f'wandb.login(key="{MARK}Aa11Bb22Cc33Dd44")',
    f"WANDB_API_KEY={MARK}",
    f"--api-key {MARK}",
    f"https://user:{MARK}@host/x",
)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
# Where a text has them: beside what is read, quoted or told again.
PLACES = (
    "vllm serve Qwen/Qwen3-8B {} --max-model-len 4096\n" + OOM,
    'File "train.py", line 4, in forward\n    {}; y = model(x)\n' + OOM,
    'File "/x/{}/train.py", line 4, in forward\n    y = model(x)\n' + OOM,
    "logits = lm_head(x); {}\n" + OOM,
    "Memory cgroup out of memory: Killed process 4 (python {}) total-vm:3kB, anon-rss:9kB",
    "Model loading took 13.7 GiB memory for {} and 12.1 seconds\n" + OOM,
    "|    0   N/A  N/A     12345      C   python {}                38000MiB |\n" + OOM,
    "my training OOMs when the prompts are longer, {} it worked yesterday",
    "显存溢出，序列太长 {}，训练正常",
    "env: {} max_model_len=4096 gpu_memory_utilization=0.9\n" + OOM,
    '{"model": "x", "note": "{}", "max_len": 4096}\n' + OOM,
    "{} " + "x" * 280 + " {} " + OOM,
)


@pytest.mark.parametrize("secret", sampled(SECRETS, keep=4))
@pytest.mark.parametrize("place", sampled(PLACES, keep=6))
def test_secrets_are_not_printed_again(
    place: str, secret: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wherever the text has them: on the screen, as JSON, in Python, a notebook, REST and MCP."""
    text = place.replace("{}", secret)
    path = tmp_path / "log.txt"
    path.write_text(text)
    for words in (["diagnose"], ["diagnose", "-f", "json"], []):
        main([*words, str(path)])
    found = diagnose(text)
    said = [*capsys.readouterr(), str(found), found._repr_html_()]
    said += [
        str(TASKS["diagnose"]({"text": text}, {})),
        str(ANSWERS["diagnose"](DiagnoseArguments(text=text))),
    ]
    for one in said:
        assert MARK not in one


def test_a_model_that_cannot_be_trained_is_no_fault() -> None:
    """The text names one of which only serving is modelled."""
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB."
    assert diagnose(f"loading meta-llama/Llama-3.2-11B-Vision-Instruct\n{oom}").summary


@pytest.mark.proof
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
