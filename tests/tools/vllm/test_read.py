"""`vllm serve`: what its options mean in a run file, what is refused, and what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.launchers.launch import read_launch
from gpu_mem_calculator.tools.reading.named_files import NamedFiles
from gpu_mem_calculator.tools.reading.reading import Reading
from gpu_mem_calculator.tools.reading.tools import read_command, read_data

MODEL = "Qwen/Qwen3-32B"
TABLE = Path(__file__).parent / "options.jsonl"
CASES = [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines()]


def read(text: str, folder: Path | None = None, **environment: str) -> Reading:
    """What a command with these options means."""
    words = ["vllm", "serve", MODEL, *text.split()]
    return read_command(read_launch(words, NamedFiles(folder), environment))


def section(text: str, **environment: str) -> dict[str, Any]:
    """The keys that the options add to those of the bare command."""
    reading = read(text, **environment)
    assert not reading.problems
    bare = {"engine": "vllm", "tensor_parallel_size": 1}
    return {key: one for key, one in reading.run["inference"].items() if bare.get(key) != one}


@pytest.mark.parametrize(("text", "keys"), [(row["text"], row["keys"]) for row in CASES])
def test_options_become_keys(text: str, keys: dict[str, Any]) -> None:
    """Options that change memory become keys of `inference`; others add none."""
    assert section(text) == keys


def test_every_form_of_the_program_is_read() -> None:
    """The command, the module, the image, and its arguments alone mean the same."""
    runs = [
        read_command(read_launch(words.split(), NamedFiles(None))).run
        for words in (
            f"vllm serve {MODEL} --tensor-parallel-size 2",
            f"/opt/bin/vllm serve --model {MODEL} -tp 2",
            f"python3 -m vllm.entrypoints.openai.api_server --model {MODEL} -tp=2",
            f"docker run --gpus all vllm/vllm-openai:latest --model {MODEL} -tp 2",
            f"--model {MODEL} -tp 2",
        )
    ]
    assert all(run == runs[0] for run in runs)
    assert runs[0]["model"] == {"name": MODEL}


def test_the_command_wins_over_its_file(tmp_path: Path) -> None:
    """A file for --config is read as vLLM does, alone or behind a command."""
    config = {
        "max-model-len": 4096,
        "tensor_parallel_size": 2,
        "no-enable-prefix-caching": True,
        "compilation-config": {"cudagraph_mode": "PIECEWISE"},
        "async-scheduling": True,
    }
    (tmp_path / "c.yaml").write_text(json.dumps(config))
    found = read("--config c.yaml -tp 4", tmp_path).run["inference"]
    assert found == {
        "engine": "vllm",
        "tensor_parallel_size": 4,
        "max_seq_len": 4096,
        "enable_prefix_caching": False,
        "cudagraph_mode": "piecewise",
    }
    alone = read_data({"model": MODEL, **config}, NamedFiles(None))
    assert alone is not None
    assert alone.run["inference"] == found | {"tensor_parallel_size": 2}


def test_replicas_and_nodes_are_gpus() -> None:
    """The GPUs are those of all ranks; too few visible ones are a problem."""
    assert read("-tp 8 -pp 2 --nnodes 2").run["hardware"] == {"num_gpus": 16, "num_nodes": 2}
    assert read("-dp 16 -dpl 8").run["hardware"] == {"num_gpus": 16, "num_nodes": 2}
    (few,) = read("-tp 4", CUDA_VISIBLE_DEVICES="0,1").problems
    assert few.startswith("CUDA_VISIBLE_DEVICES gives 2 of the 4 GPUs")


@pytest.mark.parametrize(
    ("text", "key", "could"),
    [
        ("--attention-backend FLASHINFER", "--attention-backend='FLASHINFER'", "more"),
        ("--max-model-len auto", "--max-model-len='auto'", "less"),
        ("--load-format fastsafetensors", "--load-format='fastsafetensors'", "more"),
        ("--kv-cache-dtype turboquant_k8v4", "--kv-cache-dtype='turboquant_k8v4'", "less"),
        ("-cc.custom_ops+ all", '--compilation-config.custom_ops=["all"]', "either"),
        ("--spec-method suffix", "--speculative-config.method=suffix", "more"),
        ('--hf-overrides {"architectures":["X"]}', '--hf-overrides.architectures=["X"]', "either"),
        ("--runner pooling", "--runner='pooling'", "less"),
        ("-q gptq_marlin", "--quantization='gptq_marlin'", "less"),
        ("--task embed", "--task='embed'", "less"),
    ],
)
def test_what_is_not_modelled_is_named(text: str, key: str, could: str) -> None:
    """A value that is not modelled is a limit, with its direction."""
    (limit,) = read(text).limits
    assert (limit.key, limit.could) == (key, could)


@pytest.mark.parametrize(
    "text", ["--runner auto", "--attention-backend FLASH_ATTN", "--max-logprobs 20"]
)
def test_a_refused_option_at_its_default_is_no_limit(text: str) -> None:
    """What has the default changes nothing."""
    assert not read(text).limits


def test_variables_are_sorted() -> None:
    """Variables are honoured, free or refused, like options; an unknown one has no effect."""
    reading = read(
        "",
        VLLM_USE_FLASHINFER_SAMPLER="0",
        VLLM_USE_V1="0",
        VLLM_USE_DEEP_GEMM="1",
        VLLM_LOGGING_LEVEL="DEBUG",
        VLLM_ATTENTION_BACKEND="XFORMERS",
        VLLM_USE_V3="1",
        HOME="/x",
    )
    found = reading.run["inference"]
    assert found["use_flashinfer_sampler"] is False
    assert found["engine_generation"] == "v0"
    assert [limit.key for limit in reading.limits] == ["VLLM_ATTENTION_BACKEND='XFORMERS'"]
    assert not reading.problems
    assert "VLLM_USE_V3 is no variable of vLLM; it has no effect" in reading.assumed
    assert "HOME" not in reading.keys


def test_an_unknown_option_names_the_nearest() -> None:
    """A misspelt option or field is a problem that names the nearest."""
    (problem,) = read("--max-model-length 4096").problems
    assert "did you mean 'max_model_len'" in problem
    (field,) = read("-cc.cudagraph_modes NONE").problems
    assert "compilation_config.cudagraph_mode" in field


@pytest.mark.parametrize(
    "text",
    [
        "--max-model-len 1.5K",
        "--max-model-len $LEN",
        "--max-num-seqs 4k",
        "--max-num-seqs 0",
        "--dtype int8",
        "--compilation-config 3",
        "--speculative-config ngram",
        "--config",
        "--mm-encoder-tp-mode rows",
        "-tp two",
        "--gpu-memory-utilization high",
        "--omni",
        '--limit-mm-per-prompt {"image":"x"}',
        "-cc.cudagraph_mode SOME",
        "--quantization",
        '--compilation-config {"cudagraph_mode":[1]}',
        '--cudagraph-capture-sizes {"a":1}',
        '--speculative-config {"model":3}',
        "-cc." + "a." * 40 + "b 1",
    ],
)
def test_a_wrong_value_is_one_sentence(text: str) -> None:
    """A value of another type is one sentence."""
    with pytest.raises(InputError) as caught:
        read(text)
    assert len(caught.value.problems) == 1
    assert "\n" not in str(caught.value)


def test_a_command_needs_a_model_and_may_not_open_files() -> None:
    """A missing model and a file where none may be opened are sentences."""
    with pytest.raises(InputError, match="needs a model"):
        read_command(read_launch(["vllm", "serve", "--port", "1"], NamedFiles(None)))
    with pytest.raises(InputError, match="no files are opened"):
        read("--config x.yaml")
