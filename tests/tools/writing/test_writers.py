"""Every format: its writer exists, batches agree, refusals are one sentence."""

from __future__ import annotations

import json
import re
from importlib import import_module
from typing import Any

import pytest
import yaml

from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.writing import writers
from gpu_mem_calculator.tools.writing.texts import command_text, toml_text
from gpu_mem_calculator.tools.writing.writers import WRITERS

from .runs import Data, resolved, run_file, written

NAMED = {"model": {"name": "llama3.2-1b"}}
TRAINERS = [name for name, one in WRITERS.items() if one.trains]
GRPO = {"tool": "trl.GRPOTrainer", "args": {"max_completion_length": 64}, "data": {"prompt": 64}}


@pytest.mark.parametrize("name", WRITERS)
def test_the_writer_exists(name: str) -> None:
    """Each function that the table names."""
    row = WRITERS[name]
    module = import_module(f"gpu_mem_calculator.tools.{row.module}")
    assert all(callable(getattr(module, one)) for one in (row.function, *row.endings.values()))
    assert row.trains or row.serves
    assert ("{file}" in row.start) == (row.trains and name not in ("json", "yaml", "toml"))


@pytest.mark.parametrize("name", ["transformers", "trl", "llamafactory", "axolotl"])
@pytest.mark.parametrize("engine", [{"type": "fsdp"}, {"type": "deepspeed", "zero_stage": 2}])
def test_the_batch_of_a_step(name: str, engine: Data) -> None:
    """Micro-batch and accumulation as in the run; DeepSpeed's own sizes follow from them."""
    data = yaml.safe_load(written(name, NAMED | without_model(run_file(engine, gpus=8))).text)
    micro = data.get("per_device_train_batch_size", data.get("micro_batch_size"))
    assert (micro, data["gradient_accumulation_steps"]) == (2, 4)
    inner = data.get("deepspeed") if isinstance(data.get("deepspeed"), dict) else {}
    assert inner.get("train_batch_size", "auto") in ("auto", 64)


@pytest.mark.parametrize("name", ["transformers", "trl", "llamafactory", "axolotl"])
def test_a_file_has_the_same_data_as_json(name: str) -> None:
    """Which says as much, and is YAML, too."""
    file, run = resolved(NAMED | without_model(run_file(optimizer="adamw_8bit", lora={"rank": 8})))
    usual = writers.write_run(name, file, run)
    other = writers.write_run(name, file, run, output="run.json")
    assert json.loads(other.text) == yaml.safe_load(other.text) == yaml.safe_load(usual.text)
    assert other.unsaid == usual.unsaid


def without_model(data: Data) -> Data:
    """The other sections of a run file."""
    return {key: value for key, value in data.items() if key != "model"}


def test_what_is_not_said_is_a_comment() -> None:
    """One line for each key, with both values, under a line that names the tool."""
    made = written("trl", NAMED | without_model(run_file(zero_grad="before_backward")))
    head = made.text.partition("model_name_or_path")[0]
    assert "# Not as in the run, because TRL has no key for it:\n" in head
    assert "#   training.zero_grad='before_backward': TRL has 'after_step'\n" in head
    assert "#   training.loss='full': TRL has 'chunked'\n" in head
    assert len(made.unsaid) == head.count("#   ")


@pytest.mark.parametrize("name", ["trl", "llamafactory", "axolotl", "transformers", "accelerate"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"engine": {"type": "megatron_lm"}}, "Megatron"),
        ({"engine": {"type": "deepspeed"}, "parallelism": {"pipeline_parallel_size": 2}}, "pp 2"),
    ],
)
def test_runs_of_other_engines_are_refused(name: str, change: Data, said: str) -> None:
    """One sentence that names what the tool has not."""
    data = {**NAMED, "hardware": {"num_gpus": 8}, **change}
    with pytest.raises(InputError) as raised:
        written(name, data)
    assert len(raised.value.problems) == 1
    assert said in raised.value.problems[0]


def test_generation_is_no_sft() -> None:
    """GRPO cannot be written as `trl sft`."""
    with pytest.raises(InputError, match="the run has generation, and `trl sft` does not"):
        written("trl", {**NAMED, "program": GRPO})


def test_another_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that would train without the adapters is no file of the run."""
    row = WRITERS["llamafactory"]
    plain = yaml.safe_load(written("llamafactory", NAMED | without_model(run_file())).text)
    text = yaml.safe_dump(plain)
    monkeypatch.setattr(writers, "_writer", lambda form, output: lambda file, resolved: text)
    assert row.read == "file"
    with pytest.raises(InputError, match=r"cannot be written for LLaMA-Factory: training\.lora="):
        written("llamafactory", NAMED | without_model(run_file(lora={"r": 4})))


def test_free_arguments_of_a_program_are_kept() -> None:
    """The learning rate takes no memory, and the file has it."""
    args = {"per_device_train_batch_size": 2, "learning_rate": 3e-5, "num_train_epochs": 2}
    program = {"tool": "transformers.Trainer", "args": args, "data": {"seq_len": 512}}
    for name in ("transformers", "trl", "llamafactory"):
        text = written(name, {**NAMED, "program": program}).text
        assert yaml.safe_load(text)["learning_rate"] == 3e-5, name


def test_a_model_without_a_name() -> None:
    """A placeholder, and a sentence about it."""
    made = written("trl", run_file())
    assert "model_name_or_path: MODEL\n" in made.text
    assert "# MODEL stands for the name or path of the model\n" in made.text


def test_nodes() -> None:
    """Launchers of several nodes."""
    data = {**NAMED, "engine": {"type": "fsdp"}, "hardware": {"num_gpus": 16, "num_nodes": 2}}
    made: Any = yaml.safe_load(written("accelerate", data).text)
    assert (made["num_machines"], made["num_processes"]) == (2, 16)
    start = written("transformers", data).start
    zero = {**data, "engine": {"type": "deepspeed", "zero_stage": 2}}
    assert written("deepspeed", zero).start.startswith("deepspeed --num_nodes 2 --num_gpus 8 ")
    assert re.match(r"torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d", start)


def test_texts() -> None:
    """TOML's tables, and long commands on several lines."""
    data = {"a": {"b": 1, "c": {"d": [1, "x"], "e f": True, "n": None}}}
    assert toml_text(data) == '[a]\nb = 1\n\n[a.c]\nd = [1, "x"]\n"e f" = true\n'
    assert command_text(["a", "--b", "c d"]) == "a --b 'c d'\n"
    long = command_text(["program", "--first", "x" * 50, "--second", "y" * 50])
    assert long == f"program \\\n  --first {'x' * 50} \\\n  --second {'y' * 50}\n"
