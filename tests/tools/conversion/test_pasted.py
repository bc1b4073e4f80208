"""What people paste from a page: parts of scripts in Python, lists of words, broken lines."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import TEXT_ALONE, read

CLASS = """
model_name = "Qwen/Qwen2.5-7B-Instruct"
sampling_params = SamplingParams(max_tokens=8192)
llm = LLM(
    model=model_name,
    pipeline_parallel_size=2,
    dtype="float16",
    limit_mm_per_prompt={"image": 2},
)
"""
SERVE = "vllm serve Qwen/Qwen3-8B --max-model-len 8192"


def test_a_part_of_a_script_that_makes_vllms_class_is_a_server() -> None:
    """Its arguments are those of vllm serve; more tokens a step are a limit with a bound."""
    found = read(CLASS, TEXT_ALONE)
    assert found.run["model"] == {"name": "Qwen/Qwen2.5-7B-Instruct"}
    assert found.run["inference"]["pipeline_parallel_size"] == 2
    assert [(one.key, one.adds) for one in found.limits] == [
        ("max_num_batched_tokens", "activations")
    ]


def test_a_call_of_the_class_alone_is_a_server() -> None:
    """Its result needs no name, and FROM is no instruction of Ollama here."""
    text = 'from vllm import LLM, SamplingParams\nLLM("Qwen/Qwen3-8B", max_num_batched_tokens=2048)'
    found = read(text, TEXT_ALONE)
    assert found.run["model"] == {"name": "Qwen/Qwen3-8B"}
    assert not found.limits


def test_every_gpu_of_the_class_is_left_to_the_one_who_asks() -> None:
    """torch.cuda.device_count() is what --gpus says; a model that is not said is missing."""
    every = "llm = LLM(model=PATH, tensor_parallel_size=torch.cuda.device_count())"
    found = read(every, TEXT_ALONE)
    assert "num_gpus" not in found.run["hardware"]
    assert "model" not in found.run
    with pytest.raises(InputError, match=r"max_model_len of LLM.* is not said in pasted.py"):
        read('llm = LLM(model="Qwen/Qwen3-8B", max_model_len=LONGEST)', TEXT_ALONE)


def test_a_part_of_a_script_that_makes_a_trainer_is_a_training_run() -> None:
    """The imports that it leaves out are those of the classes that it calls."""
    text = """
trainer = DPOTrainer(
    model=AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct"),
    args=DPOConfig(output_dir="out", per_device_train_batch_size=2),
)
trainer.train()
"""
    program = read(text, TEXT_ALONE).run["program"]
    assert program["tool"] == "trl.DPOTrainer"
    assert program["args"]["per_device_train_batch_size"] == 2


@pytest.mark.parametrize(
    "text",
    [
        '["vllm", "serve", "Qwen/Qwen3-8B", "--max-model-len", "8192"]',
        "[\n 'vllm', 'serve',  # the server\n 'Qwen/Qwen3-8B',\n '--max-model-len=8192',\n]",
        "  - vllm\n  - serve\n  - Qwen/Qwen3-8B\n  - --max-model-len=8192",
        "vllm serve Qwen/Qwen3-8B --max-model-len\n     8192\n     --enforce-eager",
    ],
)
def test_a_command_as_a_list_or_with_broken_lines_is_that_command(text: str) -> None:
    """JSON, Python with comments, YAML, and lines that a page has broken."""
    found = read(text, TEXT_ALONE)
    assert found.run["model"] == {"name": "Qwen/Qwen3-8B"}
    assert found.run["inference"]["max_seq_len"] == 8192


def test_an_image_of_a_mirror_starts_what_the_image_starts() -> None:
    """A registry's own folders stand in front of its name."""
    text = f"""
services:
  server:
    image: mirror.example.com/copies/docker.io/vllm/vllm-openai:v0.26.0-cu129
    command: {SERVE.removeprefix("vllm serve ")}
"""
    found = read(text, TEXT_ALONE)
    assert found.run["inference"]["engine_version"] == "0.26.0"
