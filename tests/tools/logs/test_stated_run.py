"""The run that a text states: a command in it, or the arguments that a server printed."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.tools.logs.read import read_log
from gpu_mem_calculator.tools.logs.stated_run import stated_run

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.27 GiB."
VLLM = "INFO 08-20 09:12:32 [utils.py:326] non-default args: {{{}}}"


def _run(text: str) -> dict[str, Any]:
    found = stated_run(text, read_log(text))
    assert found.asked is not None, found.problems
    return found.asked.run


@pytest.mark.parametrize(
    ("text", "line", "length"),
    [
        ("it dies:\n$ vllm serve Qwen/Qwen3-8B --max-model-len 8192\n" + OOM, 2, 8192),
        ("vllm serve Qwen/Qwen3-8B \\\n  --max-model-len 4096\n" + OOM, 1, 4096),
        ("log\n" + VLLM.format("'model': 'Qwen/Qwen3-8B', 'max_model_len': 2048"), 2, 2048),
        (
            "Initializing a V1 LLM engine (v0.10.1) with config: model='Qwen/Qwen3-8B',"
            " tokenizer='x', dtype=torch.bfloat16, max_seq_len=5120, quantization=None",
            1,
            5120,
        ),
        (
            "server_args=ServerArgs(model_path='Qwen/Qwen3-8B', tp_size=1, context_length=1024,"
            " disable_cuda_graph=False)",
            1,
            1024,
        ),
    ],
)
def test_a_server_is_that_of_its_command_or_arguments(text: str, line: int, length: int) -> None:
    """With its line, the length and the model."""
    run = _run(text)
    assert run["model"]["name"] == "Qwen/Qwen3-8B"
    assert run["inference"]["max_seq_len"] == length
    assert stated_run(text, read_log(text)).line == line


def test_ollama_lists_its_model_and_context() -> None:
    """`ollama ps` of a release that prints the context."""
    head = "NAME           ID              SIZE      PROCESSOR    CONTEXT    UNTIL\n"
    run = _run(head + "llama3.1:8b    46e0c10c039e    6.7 GB    100% GPU     8192    Forever")
    assert run["inference"]["max_seq_len"] == 8192


def test_a_command_that_cannot_be_read_is_said() -> None:
    """By its line; files that a log names are not opened."""
    text = "x\naccelerate launch --config_file /etc/passwd -m trl.scripts.sft\n" + OOM
    found = stated_run(text, read_log(text))
    assert found.asked is None
    assert "line 2" in found.problems[0]
    assert "no files are opened" in found.problems[0]


@pytest.mark.parametrize("text", ["", OOM, "pip install -U torch --pre\n" + OOM, "a b -c\n" * 99])
def test_a_text_without_a_run_states_none(text: str) -> None:
    """Nor does a command of no known tool."""
    found = stated_run(text, read_log(text))
    assert (found.asked, found.problems) == (None, ())
