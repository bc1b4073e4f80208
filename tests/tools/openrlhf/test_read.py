"""OpenRLHF's commands: DeepSpeed's configuration, batches, and what is not modelled."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.launchers.launch import read_launch
from gpu_mem_calculator.tools.reading.named_files import NamedFiles
from gpu_mem_calculator.tools.reading.reading import Reading
from gpu_mem_calculator.tools.reading.tools import read_command

SFT = ("--model.model_name_or_path", "gpt2", "--train.batch_size", "64")


def _read(kind: str, *words: str) -> Reading:
    launch = ["deepspeed", "--num_gpus", "4", "--module", f"openrlhf.cli.train_{kind}", *words]
    return read_command(read_launch(launch, NamedFiles(None)))


def test_supervised_fine_tuning() -> None:
    """ZeRO-2 and a micro-batch of 8 by default."""
    reading = _read("sft", *SFT, "--ds.adam_offload", "--model.gradient_checkpointing_enable")
    run = reading.run
    assert run["engine"] == {
        "type": "deepspeed",
        "zero_stage": 2,
        "offload_optimizer": "cpu",
        "pin_memory": True,
    }
    assert (run["training"]["batch_size"], run["training"]["gradient_accumulation_steps"]) == (8, 2)
    assert run["training"]["activation_checkpointing"] == "full"
    assert (reading.limits, reading.problems) == ([], [])


def test_names_of_releases_before_sections() -> None:
    """They are read as what they are called now, and one sentence says so."""
    words = "--pretrain gpt2 --micro_train_batch_size 2 --train_batch_size 64 --bf16 --flash_attn"
    reading = _read("sft", *words.split(), "--gradient_checkpointing", "--max_len", "512")
    training = reading.run["training"]
    assert reading.run["model"] == {"name": "gpt2"}
    assert (training["batch_size"], training["seq_len"]) == (2, 512)
    assert training["activation_checkpointing"] == "full"
    assert (reading.limits, reading.problems) == ([], [])
    assert "--micro_train_batch_size is --train.micro_batch_size" in reading.assumed[0]


def test_names_that_are_the_actors_in_ppo() -> None:
    """Prompt and answer make the row there."""
    words = "--pretrain gpt2 --actor_num_gpus_per_node 2 --max_norm 0.5 --gradient_checkpointing"
    command = ["python", "-m", "openrlhf.cli.train_ppo_ray", *words.split()]
    command += ["--prompt_max_len", "2048", "--generate_max_len", "512"]
    reading = read_command(read_launch(command, NamedFiles(None)))
    training = reading.run["training"]
    assert reading.run["model"] == {"name": "gpt2"}
    assert (training["seq_len"], training["gradient_clipping"]) == (2560, 0.5)
    assert training["activation_checkpointing"] == "full"
    assert reading.problems == []


@pytest.mark.parametrize("kind", ["sft_ray", "es_ray"])
def test_a_trainer_that_was_not_read_is_refused(kind: str) -> None:
    """It is not taken for supervised fine-tuning."""
    with pytest.raises(InputError, match=f"train_{kind} is not read; OpenRLHF is read with"):
        _read(kind, *SFT)


def test_packing_makes_one_row() -> None:
    """A micro-batch is one row of its tokens."""
    words = (*SFT, "--ds.packing_samples", "--train.micro_batch_size", "2", "--data.max_len", "512")
    training = _read("sft", *words).run["training"]
    assert (training["batch_size"], training["seq_len"]) == (1, 1024)
    assert training["packed_documents"] == 2


@pytest.mark.parametrize(("kind", "rows"), [("dpo", 16), ("rm", 2)])
def test_pairs_are_one_batch(kind: str, rows: int) -> None:
    """Chosen and rejected together, of 512 tokens by default; the loss is a limit."""
    reading = _read(kind, *SFT)
    training = reading.run["training"]
    assert (training["batch_size"], training["seq_len"]) == (rows, 512)
    assert reading.limits


def test_ppo_has_its_own_gpus() -> None:
    """The actor's; vLLM on the same ones is a limit."""
    words = ("--actor.model_name_or_path", "gpt2", "--actor.num_gpus_per_node", "2")
    reading = _read("ppo_ray", *words, "--train.colocate_all")
    assert reading.run["hardware"]["num_gpus"] == 2
    (limit,) = (one for one in reading.limits if "vLLM takes 0.95" in one.why)
    assert "host RAM" not in limit.why
    asleep = _read("ppo_ray", *words, "--train.colocate_all", "--vllm.enable_sleep")
    assert any("each engine pins its weights in host RAM" in one.why for one in asleep.limits)


def test_what_is_wrong_is_a_sentence() -> None:
    """An option that is not there, and a model that is missing."""
    problems = _read("sft", "--ds.zero_stages", "2").problems
    assert any("--ds.zero_stages" in one for one in problems)
    assert any("model_name_or_path is missing" in one for one in problems)


@pytest.mark.parametrize("value", ["$SIZE", "null", "1e400", "[1]", "-1"])
@pytest.mark.parametrize(
    "name",
    ["train.micro_batch_size", "train.batch_size", "data.max_len", "ds.lora.rank", "ds.zero_stage"],
)
def test_a_number_that_is_none_is_a_sentence(name: str, value: str) -> None:
    """What a shell's variable without a value leaves, and less than nothing."""
    if (name, value) == ("ds.lora.rank", "null"):
        return  # no adapters
    with pytest.raises(InputError, match=f"^--{name}=.* must be a whole number"):
        _read("sft", *SFT, f"--{name}", value)


@pytest.mark.parametrize("name", ["num_nodes", "num_gpus_per_node"])
def test_the_actors_gpus_are_a_number(name: str) -> None:
    """Those of PPO are options of its own."""
    words = ("--actor.model_name_or_path", "gpt2", f"--actor.{name}", "$GPUS")
    with pytest.raises(InputError, match=f"^--actor.{name}=.* must be a whole number"):
        _read("ppo_ray", *words)


@pytest.mark.parametrize(
    ("kind", "rows", "keys"),
    [
        ("ppo", 4, {"--actor.policy_loss_type", "openrlhf.cli.train_ppo"}),
        ("kto", 16, {"openrlhf.cli.train_kto", "--ref.model_name_or_path"}),
        ("kd", 8, {"--teacher_model='gpt2-xl'"}),
        ("prm", 1, {"openrlhf.cli.train_prm"}),
    ],
)
def test_trainers_of_older_releases(kind: str, rows: int, keys: set[str]) -> None:
    """PPO in one process, KTO, distillation and rewards of steps; what is not modelled is named."""
    words = ("--teacher_model", "gpt2-xl") if kind == "kd" else ()
    reading = _read(kind, "--pretrain", "gpt2", *words)
    assert reading.run["model"] == {"name": "gpt2"}
    assert reading.run["training"]["batch_size"] == rows
    assert {limit.key for limit in reading.limits} == keys
    assert reading.problems == []


def test_scripts_of_examples_before_there_were_modules() -> None:
    """Their options tell them; what a shell leaves open is asked for."""
    words = "--num_gpus 4 examples/train_sft.py --pretrain gpt2 --micro_train_batch_size 2"
    reading = read_command(read_launch(["deepspeed", *words.split()], NamedFiles(None)))
    assert (reading.tool, reading.run["training"]["batch_size"]) == ("OpenRLHF", 2)
    with pytest.raises(InputError, match="the script does not say; write its value"):
        _read("sft", *SFT, "--data.max_len", "$LENGTH")
