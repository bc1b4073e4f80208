"""Commands of Ollama, its names, and Modelfiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.ollama.modelfile import is_modelfile, parse_modelfile
from gpu_mem_calculator.tools.ollama.read import read_modelfile, read_name
from gpu_mem_calculator.tools.reading.named_files import NamedFiles
from tests.tools.reading_of import reading_of

FILE = '''# a comment
FROM llama3.2
PARAMETER num_ctx 8192
parameter num_gpu 10
PARAMETER stop "AI assistant:"
SYSTEM """
FROM here on it is text
"""
ADAPTER ./lora.gguf
'''


@pytest.mark.parametrize(
    ("name", "model", "quantization"),
    [
        ("llama3.1:8b-instruct-q4_K_M", "llama3.1-8b-instruct", "Q4_K_M"),
        ("llama3.2", "llama3.2-3b", "Q4_K_M"),
        ("llama3.2:latest", "llama3.2-3b", "Q4_K_M"),
        ("llama2:13b", "llama2-13b", "Q4_0"),
        ("mistral:instruct", "mistral-7b-instruct", "Q4_K_M"),
        ("gpt-oss:120b", "gpt-oss-120b", "BF16"),
        ("deepseek-r1:14b", "deepseek-r1-distill-qwen-14b", "Q4_K_M"),
        ("qwen3:8b-fp16", "qwen3-8b", "F16"),
        ("hf.co/bartowski/Llama-3.2-1B-Instruct-GGUF:Q8_0", "Llama-3.2-1B-Instruct", "Q8_0"),
        ("hf.co/owner/unknown-GGUF", "owner/unknown-GGUF", "Q4_K_M"),
    ],
)
def test_names(name: str, model: str, quantization: str) -> None:
    """A name and its tag say the model and the type of its weights."""
    found = read_name(name)
    assert (found.model, found.quantization) == (model, quantization)


@pytest.mark.parametrize(
    ("line", "keys"),
    [
        ("OLLAMA_CONTEXT_LENGTH=8192 ollama run qwen3:8b", {"max_seq_len": 8192}),
        (
            "OLLAMA_CONTEXT_LENGTH=40000 OLLAMA_NUM_PARALLEL=2 ollama run llama3.1",
            {"max_seq_len": 80000, "n_parallel": 2},
        ),
        ("OLLAMA_CONTEXT_LENGTH=999999 ollama run qwen3:8b", {"max_seq_len": 40960}),
        ("OLLAMA_NUM_PARALLEL=4 ollama run qwen3.5:9b", {"n_parallel": 1}),
        ("OLLAMA_KV_CACHE_TYPE=q8_0 ollama run qwen3:8b", {"cache_type_k": "q8_0"}),
        ("OLLAMA_FLASH_ATTENTION=0 ollama run qwen3:8b", {"flash_attn": False}),
        ("ollama run qwen3:8b --think --verbose", {"engine": "ollama"}),
        ("ollama run --think qwen3:8b", {"engine": "ollama"}),
    ],
)
def test_variables_are_options_of_llama_server(line: str, keys: dict[str, Any]) -> None:
    """Ollama starts llama-server: its variables become options of it."""
    reading = reading_of(line)
    assert not reading.problems
    assert reading.run["inference"].items() >= keys.items()


def test_what_nobody_says_is_the_release_s_to_choose() -> None:
    """A context, slots and batches that are not given are not written."""
    assert reading_of("ollama run llama3.1:8b").run["inference"] == {
        "engine": "ollama",
        "quantization": "q4_k_m",
    }


def test_a_modelfile_says_parameters_and_parts(tmp_path: Path) -> None:
    """PARAMETER sets keys; text in quotes is no instruction; an adapter is a limit."""
    (tmp_path / "Modelfile").write_text(FILE, encoding="utf-8")
    reading = reading_of("ollama create mario", tmp_path)
    section = reading.run["inference"]
    assert (section["max_seq_len"], section["n_gpu_layers"]) == (8192, 10)
    assert [one.could for one in reading.limits if "ADAPTER" in one.key] == ["more"]
    assert reading.keys["PARAMETER num_ctx"] == "memory"
    assert reading.keys["PARAMETER stop"] == "free"
    assert is_modelfile(FILE)
    assert not is_modelfile("model: x\n")
    assert read_modelfile(FILE, NamedFiles(None)).run == reading.run


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("PARAMETER num_ctx 1", "no FROM"),
        ("FROM x\nPARAMETER num_ctx", "has no value"),
        ("FROM x\nPARAMTER num_ctx 1", "did you mean 'parameter'"),
        ('FROM x\nSYSTEM """open', "not closed"),
        ("FROM x\n" * 30_000, "more than 20,000 lines"),
        ("FROM llama3.2\nPARAMETER num_ctx many", "must be a whole number"),
        ("FROM /root/.ollama/models/blobs/sha256-00e1", "says no model"),
    ],
)
def test_malformed_modelfiles_get_a_sentence(text: str, sentence: str) -> None:
    """The line, the instruction or the value that is wrong."""
    with pytest.raises(InputError, match=sentence):
        read_modelfile(text, NamedFiles(None))


def test_an_unknown_parameter_is_a_problem() -> None:
    """Ollama refuses it, too."""
    reading = read_modelfile("FROM llama3.2\nPARAMETER num_ctxx 1", NamedFiles(None))
    assert "did you mean 'num_ctx'?" in reading.problems[0]
    assert parse_modelfile("FROM a\nFROM b").more_bases == ["b"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("ollama serve", "loads a model when it is asked for"),
        ("ollama list", "loads no model"),
        ("ollama run", "names no model"),
        ("ollama run gpt-oss:120b-cloud", "cloud"),
    ],
)
def test_commands_without_a_model(line: str, sentence: str) -> None:
    """A command that loads nothing here says so."""
    with pytest.raises(InputError, match=sentence):
        reading_of(line)
