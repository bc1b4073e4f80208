"""`infer`: a server in words, the report, the answers and the mistakes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from gpu_mem_calculator.serving import server_names
from tests.corpus import sampled

from .conftest import Command, above_the_last

H100 = ("--gpu", "h100-80gb-sxm")


def test_the_answer_is_one_screen(command: Command) -> None:
    """What was asked, users, parts, total, speed, the command to start, two changes to paste."""
    answer = command("infer", "llama3.1-8b", "--engine", "sglang", *H100)
    assert answer.code == 0
    for words in (
        "Llama 3.1 8B",
        "fits: 3 users at 131,072 tokens each, ",
        "GiB per GPU",
        "tokens each",
        "what nvidia-smi shows",
        "speed: about",
        "start: python -m sglang.launch_server",
        "meta-llama/Llama-3.1-8B",
        "more with KV cache in fp8: ",
        "gpu-mem-calc infer llama3.1-8b --engine sglang",
        "details: ",
    ):
        assert words in answer.out
    assert max(map(len, above_the_last(answer.out))) <= 80
    assert len(answer.out.splitlines()) <= 22


def test_the_long_answer_has_everything(command: Command) -> None:
    """Every part with its names, the table of users, the bound on speed, all changes and notes."""
    answer = command("infer", "llama3.1-8b", *H100, "--long")
    for words in (
        "on one GPU",
        "concurrent sequences allowed (max_num_seqs)",
        "users by context: share of the KV cache",
        "theoretical upper bound on speed (roofline",
        "Published vLLM benchmarks reach a median",
        "what other changes bring",
        "note: vLLM's profiling pass peaks in",
        "note: prefix caching needs no extra memory",
        "--explain",
    ):
        assert words in answer.out
    assert max(map(len, above_the_last(answer.out))) <= 80


def test_the_words_become_a_run_file(command: Command) -> None:
    """Each flag is a key; --set is laid over them."""
    data = command(
        "infer",
        "llama3.1-8b",
        "--engine",
        "sglang",
        *H100,
        "--tp",
        "2",
        "--max-model-len",
        "8192",
        "--gpu-memory-utilization",
        "0.85",
        "--enforce-eager",
        "--set",
        "inference.dtype=fp16",
        "--format",
        "json",
    ).data
    assert data["run"]["inference"] == {
        "engine": "sglang",
        "tensor_parallel_size": 2,
        "max_seq_len": 8192,
        "gpu_memory_utilization": 0.85,
        "enforce_eager": True,
        "dtype": "fp16",
    }
    assert data["serving"]["graph_bytes"] == 0
    assert data["matrix"]["contexts"][-1] == 8192


def test_the_table_has_the_rows_and_columns_asked_for(command: Command) -> None:
    """As many as there are numbers."""
    data = command(
        "infer",
        "llama3.1-8b",
        "--engine",
        "sglang",
        *H100,
        "--contexts",
        "500,700",
        "--concurrency",
        "1,2,3",
        "--format",
        "json",
    ).data["matrix"]
    assert (data["contexts"], data["concurrencies"]) == ([500, 700], [1, 2, 3])
    assert [len(row) for row in data["shares"]] == [3, 3]


@pytest.mark.parametrize("engine", server_names())
def test_every_engine_answers(command: Command, engine: str, tmp_path: Path) -> None:
    """A table, data, a page and an explanation, for a model of 1 B."""
    words = ("infer", "llama3.2-1b", "--engine", engine, "--gpu", "h100-80gb-sxm")
    assert command(*words).code == 0
    data = command(*words, "--format", "json").data
    assert data["fits_on_gpu"] is True
    page = tmp_path / "page.html"
    assert command(*words, "--format", "html", "--output", str(page)).code == 0
    assert "<svg" in page.read_text()
    assert "source" in command(*words, "--explain").out


def test_a_server_that_does_not_start_says_why_and_what_would_help(command: Command) -> None:
    """One sentence, and the fewest GPUs it would start on; --check is 1."""
    answer = command("infer", "llama3.3-70b", "--engine", "sglang", *H100, "--check")
    assert answer.code == 1
    assert "will not start" in answer.out
    assert "fits with 4 GPUs: " in answer.out


@pytest.mark.parametrize(("form", "in_report"), [("table", True), ("json", False), ("yaml", False)])
def test_a_check_leaves_data_alone(command: Command, form: str, in_report: bool) -> None:
    """The verdict ends the report; beside JSON and YAML it goes to stderr."""
    words = ("infer", "llama3.1-8b", "--engine", "sglang", *H100, "--check", "--format", form)
    answer = command(*words)
    last = (answer.out if in_report else answer.err).splitlines()[-1]
    assert last.startswith("Llama 3.1 8B fits: ")
    assert (answer.err == "") == in_report
    assert (last in answer.out) == in_report


def test_the_same_from_a_run_file(command: Command, tmp_path: Path) -> None:
    """infer --config and calculate --config say the same of a server."""
    file = tmp_path / "run.json"
    file.write_text(
        json.dumps(
            {
                "model": {"name": "llama3.1-8b"},
                "inference": {"engine": "sglang"},
                "hardware": {"gpu": "h100-80gb-sxm"},
            }
        )
    )
    one = command("infer", "--config", str(file), "--format", "json").data
    other = command("calculate", "--config", str(file), "--format", "json").data
    assert one == other
    assert one["serving"]["kv_tokens"] > 100_000


@pytest.mark.proof
def test_fewest_gpus_and_largest_model(command: Command) -> None:
    """Lists of settings to use."""
    words = ("--engine", "sglang", *H100, "--max-model-len", "8192")
    fewest = command("infer", "llama3.3-70b", *words, "--fewest-gpus").out
    assert "gpu-mem-calc infer llama3.3-70b --engine sglang" in fewest
    assert "--tp 4" in fewest
    assert "start: python -m sglang.launch_server" in fewest
    found = command("infer", "--largest-model", *words, "--format", "json").data
    assert found[0]["setting"][0].startswith("model.name=")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "infer needs a MODEL"),
        (("llama3.1-8b", "--engine", "vlm"), "'vlm' is not a known engine"),
        (("llama3.1-8b", "--tp", "3"), "does not divide 32 heads; try 2 or 4"),
        (("llama3.1-8b", "--contexts", "1,x"), "--contexts 'x' must be a whole number"),
        (("llama3.1-8b", "--kv-cache-dtype", "int3"), "inference.kv_cache_dtype='int3'"),
        (("llama3.1-8b", "--quantization", "q9"), "inference.quantization='q9'"),
        (("llama3.1-8b", "--config", "run.json"), "a MODEL or --config FILE, not both"),
    ],
)
def test_a_mistake_is_a_sentence(command: Command, words: tuple[str, ...], said: str) -> None:
    """Value, rule, nearest fix; exit code 2."""
    answer = command("infer", *words)
    assert answer.code == 2
    assert said in answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "context"),
    sampled(
        [
            (["--gpu", "4090", "--quantization", "awq", "--context", "8k"], "8,192 tokens"),
            (["--gpu", "h100", "--tp", "2"], "each at its own context"),
        ],
        keep=1,
    ),
)
def test_the_largest_models_are_one_screen(
    command: Command, words: list[str], context: str
) -> None:
    """A heading with the context, the engine and the card, then commands that work."""
    lines = command("infer", "--largest-model", *words).out.splitlines()
    assert len(lines) <= 22
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith(f"largest models, {context}: vLLM ")
    found = command("infer", "--largest-model", *words, "--format", "json").data
    assert found[0]["title"] in lines[1] or found[0]["title"] in lines[2]
    assert (found[0]["version"], found[0]["engine"]) == (2, "vllm")
    assert found[0]["gpu"].startswith("NVIDIA")
    pasted = shlex.split(found[0]["command"])[1:]
    assert command(*pasted, "--check").code == 0


def test_a_repository_of_gguf_files_is_served_by_llama_cpp(command: Command) -> None:
    """Where no engine is given; a given one stays."""
    words = ("infer", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "--gpu", "4090")
    assert "\nllama.cpp " in command(*words, "--context", "8k").out
    assert "\nvLLM " in command(*words, "--engine", "vllm", "--context", "8k").out


@pytest.mark.parametrize(("method", "format_name"), [("gptq", "gptq_int4"), ("BNB", "nf4")])
def test_a_quantization_method_means_its_usual_format(
    command: Command, method: str, format_name: str
) -> None:
    """As users of vLLM say it."""
    words = ("llama3.2-1b", "--gpu", "4090", "--format", "json", "--quantization", method)
    assert (
        json.loads(command("infer", *words).out)["run"]["inference"]["quantization"] == format_name
    )


@pytest.mark.parametrize(
    ("name", "model", "kind"),
    [
        ("qwen3:8b-q4_K_M", "qwen3-8b", "q4_k_m"),
        ("mistral:instruct", "mistral-7b-instruct", "q4_k_m"),
        ("models/Llama-3.2-3B-Instruct-Q8_0.gguf", "Llama-3.2-3B-Instruct", "q8_0"),
        ("hf.co/bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M", "Llama-3.2-3B-Instruct", "q4_k_m"),
    ],
)
def test_names_of_ollama_and_of_gguf_files(
    command: Command, name: str, model: str, kind: str
) -> None:
    """The server of such files, with the type that the name says; and that is said."""
    answer = command("infer", name, *H100, "--format", "json")
    run = json.loads(answer.out)["run"]
    assert run["model"]["name"] == model
    assert run["inference"]["engine"] == "llamacpp"
    assert run["inference"]["quantization"] == kind
    assert f"{name} is {model} in {kind.upper()}, by its name" in json.loads(answer.out)["assumed"]
    assert command("infer", name, *H100, "--engine", "vllm").code in (0, 2, 3)


def test_a_name_that_only_looks_like_ollamas_is_refused(command: Command) -> None:
    """As a model that is not known."""
    assert "is neither a preset nor a file" in command("infer", "what:ever", *H100).err


def test_cards_of_unlike_size_are_refused_in_one_sentence(command: Command) -> None:
    """By name and by memory."""
    start = ("infer", "llama3-8b", "--engine", "ollama")
    assert "a run has one kind; use the smallest, 24" in command(*start, "--gpu-mem", "48,24").err
    assert "a run has one kind; use the smallest" in command(*start, "--gpu", "a6000,3090").err


def test_the_largest_context_may_fit_where_something_open_takes_more(command: Command) -> None:
    """Windows' desktop holds a part of the card, of unknown size."""
    words = ("infer", "qwen3-32b", "--engine", "llamacpp", "--quantization", "q4_k_m")
    words = (
        *words,
        "--gpu",
        "4090",
        "--max-model-len",
        "8192",
        "--set",
        "inference.n_gpu_layers=99",
    )
    assert "largest context that fits: " in command(*words).out
    assert "largest context that may fit: " in command(*words, "--set", "hardware.os=windows").out
