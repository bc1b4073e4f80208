"""Commands of trl, of transformers' examples and of users' scripts as `program` sections."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.huggingface.trainers import OWN, script_arguments
from gpu_mem_calculator.tools.launchers.launch import read_launch
from gpu_mem_calculator.tools.reading.named_files import NamedFiles
from gpu_mem_calculator.tools.reading.reading import Reading
from gpu_mem_calculator.tools.reading.tools import UnknownToolError, read_command, read_data
from gpu_mem_calculator.tools.translation.arguments import argument_table
from tests.tools.reading_of import reading_of

MODEL = "--model_name_or_path Qwen/Qwen2.5-0.5B"


def _read(line: str, folder: Path | None = None) -> Reading:
    return read_command(read_launch(shlex.split(line), NamedFiles(folder)))


@pytest.mark.parametrize(
    ("line", "program"),
    [
        (f"trl sft {MODEL} --packing", {"tool": "trl.SFTTrainer", "args": {"packing": True}}),
        (
            f"trl sft {MODEL} --no_gradient_checkpointing --bf16 false",
            {"args": {"gradient_checkpointing": False, "bf16": False}},
        ),
        (
            f"trl dpo {MODEL} --dtype bfloat16",
            {"args": {"model_init_kwargs": {"dtype": "bfloat16"}}},
        ),
        (f"trl grpo {MODEL} --max_prompt_length 99", {"data": {"prompt": 99}}),
        (f"trl rloo {MODEL}", {"tool": "trl.RLOOTrainer", "data": {"prompt": 512}}),
        (
            f"trl sft {MODEL} --use_peft --lora_target_modules q_proj v_proj",
            {
                "peft": {
                    "r": 16,
                    "lora_alpha": 32,
                    "lora_dropout": 0.05,
                    "target_modules": ["q_proj", "v_proj"],
                    "task_type": "CAUSAL_LM",
                }
            },
        ),
        (
            f"trl kto {MODEL} --load_in_4bit --dtype bfloat16 --use_bnb_nested_quant",
            {
                "quantization": {
                    "load_in_4bit": True,
                    "bnb_4bit_compute_dtype": "bfloat16",
                    "bnb_4bit_quant_type": "nf4",
                    "bnb_4bit_use_double_quant": True,
                }
            },
        ),
        (
            f"trl reward {MODEL} --accelerate_config zero2 --num_processes 4",
            {
                "accelerate": {
                    "distributed_type": "DEEPSPEED",
                    "mixed_precision": "bf16",
                    "num_processes": 4,
                    "deepspeed_config": {
                        "zero_stage": 2,
                        "offload_optimizer_device": "none",
                        "offload_param_device": "none",
                        "zero3_init_flag": False,
                    },
                }
            },
        ),
        (
            f"python run_clm.py {MODEL} --block_size 256",
            {"load": None, "data": {"seq_len": 256}},  # dtype=None is what from_pretrained does
        ),
        (f"python run_dpo.py {MODEL} --max_prompt_length 9", {"tool": "trl.DPOTrainer"}),
        (
            "python train.py --model a/b --max_len 64 --lora_rank 4 --use_lora",
            {"tool": "transformers.Trainer", "data": {"seq_len": 64}},
        ),
        (f"python sft.py {MODEL} --max_seq_length 77", {"args": {"max_length": 77}}),
        (
            f"python sft.py {MODEL} --torch_dtype auto",
            {"args": {"model_init_kwargs": {"dtype": "auto"}}},
        ),
        (f"python sft.py {MODEL} --evaluation_strategy no", {"args": {"eval_strategy": "no"}}),
    ],
)
def test_program(line: str, program: dict[str, Any]) -> None:
    """The trainer, its arguments, the loading, adapters and data that a command means."""
    reading = _read(line)
    assert not reading.problems
    found = reading.run["program"]
    assert {key: found.get(key) for key in program} == program


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("trl sfft --x", "did you mean 'sft'"),
        ("trl", "it can be sft"),
        ("trl sft --model_name_or_path", "expected one argument"),
        ("python sft.py --model_name_or_path 3", "must be a name or a path"),
        ("python sft.py --config a.yaml", "no files are opened"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(line: str, sentence: str) -> None:
    """The option or word is named."""
    with pytest.raises(InputError, match=sentence):
        _read(line)


def test_an_option_that_nobody_has_is_a_problem() -> None:
    """trl's own options are known, so another one is a mistake."""
    assert _read(f"trl sft {MODEL} --pakking").problems == [
        "--pakking is not an option of trl sft; did you mean 'packing'?"
    ]


def test_options_of_a_script_that_nobody_knows_are_one_limit() -> None:
    """Names that plainly say data or logging are not named."""
    reading = _read(f"python t.py {MODEL} --max_length 8 --foo 1 --bar 2 --data_path x")
    assert [one.key for one in reading.limits] == ["--foo, --bar"]
    assert reading.keys["--data_path"] == "free"


def test_a_length_that_nothing_says_is_a_limit() -> None:
    """A plain Trainer takes the data as it is."""
    reading = _read(f"python t.py {MODEL}")
    assert reading.run["program"]["data"] == {"seq_len": 1024}
    assert [one.key for one in reading.limits] == ["length of a sequence"]


def test_several_gpus_without_a_launcher_are_a_limit() -> None:
    """Trainer would use DataParallel."""
    reading = _read(f"CUDA_VISIBLE_DEVICES=0,1 python sft.py {MODEL}")
    assert reading.run["hardware"] == {"num_gpus": 1}
    assert [one.could for one in reading.limits] == ["more"]


def test_a_refused_argument_is_a_limit() -> None:
    """The estimate is made without it."""
    reading = _read(f"trl sft {MODEL} --activation_offloading --use_peft --lora_modules_to_save x")
    assert {one.key: one.could for one in reading.limits} == {
        "--activation_offloading=true": "less",
        'peft.modules_to_save=["x"]': "more",
    }


def test_files_of_arguments_and_the_command_over_them(tmp_path: Path) -> None:
    """--config of TRL, and a file that stands alone, as HfArgumentParser takes it."""
    data = {"model_name_or_path": "a/b", "max_length": 5, "num_processes": 2, "packing": True}
    (tmp_path / "c.json").write_text(json.dumps(data), encoding="utf-8")
    reading = _read("trl sft --config c.json --max_length 6", tmp_path)
    assert reading.run["program"]["args"] == {"max_length": 6, "packing": True}
    assert reading.run["hardware"] == {"num_gpus": 2}
    alone = {"model_name_or_path": "a/b", "bf16": True, "max_seq_length": 8}
    (tmp_path / "a.json").write_text(json.dumps(alone), encoding="utf-8")
    assert _read("python tune.py a.json", tmp_path).run["program"]["args"] == {"bf16": True}


def test_files_that_a_command_names(tmp_path: Path) -> None:
    """An adapter's configuration, quantization, FSDP's settings."""
    files = {
        "peft.json": {
            "r": 4,
            "target_modules": ["q_proj"],
            "peft_type": "LORA",
            "eva_config": None,
        },
        "bnb.json": {"load_in_8bit": True, "quant_method": "bitsandbytes"},
        "fsdp.json": {"version": 2},
        "tuned/adapter_config.json": {"base_model_name_or_path": "a/b", "r": 3},
    }
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(data), encoding="utf-8")
    options = "--peft_config peft.json --quantization_config bnb.json --fsdp_config fsdp.json"
    program = _read(f"python sft.py {MODEL} {options}", tmp_path).run["program"]
    assert program["peft"]["r"] == 4
    assert program["quantization"] == {"load_in_8bit": True}
    assert program["args"]["fsdp_config"] == {"version": 2}
    tuned = _read("python sft.py --model_name_or_path tuned", tmp_path)
    assert tuned.run["model"] == {"name": "a/b"}
    assert tuned.run["program"]["peft"]["r"] == 3


def test_data_alone() -> None:
    """A file of arguments names its trainer by its own keys; Accelerate's has none."""
    files = NamedFiles(None)
    sft = read_data({"model_name_or_path": "a/b", "packing": True}, files)
    dpo = read_data({"model_name_or_path": "a/b", "precompute_ref_log_probs": True}, files)
    plain = read_data({"per_device_train_batch_size": 1}, files)
    off = read_data({"per_device_train_batch_size": 1, "debug": [], "max_seq_length": 8}, files)
    assert off is not None
    assert not off.limits
    tools = [one.tool for one in (sft, dpo, plain) if one is not None]
    assert tools == ["trl.SFTTrainer", "trl.DPOTrainer", "transformers.Trainer"]
    fsdp = {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
    launch = {"distributed_type": "FSDP", "num_processes": 4, "fsdp_config": fsdp}
    reading = read_data(launch, files)
    assert reading is not None
    assert "model" not in reading.run
    run = {**reading.run, "model": {"name": "qwen2.5-0.5b"}}
    assert full_estimate(run, replay=False).resolved.engine.name == "fsdp"


@pytest.mark.parametrize("name", ["orpo", "ppo", "online_dpo"])
def test_other_trainers_are_named(name: str) -> None:
    """They are read, and the estimate refuses them with a sentence."""
    reading = _read(f"python examples/scripts/{name}.py {MODEL} --beta 0.1")
    assert not reading.problems
    with pytest.raises(InputError, match="is not modelled: its losses"):
        full_estimate(reading.run, replay=False)


def test_deepspeed_chat() -> None:
    """Its first step is a run under DeepSpeed; a later one is refused."""
    line = "deepspeed --num_gpus 8 main.py --model_name_or_path facebook/opt-1.3b --deepspeed"
    reading = _read(f"{line} --zero_stage 2 --dtype bf16 --gradient_checkpointing --offload")
    assert reading.run["engine"] == {
        "type": "deepspeed",
        "zero_stage": 2,
        "overlap_comm": True,
        "offload_optimizer": "cpu",
    }
    assert reading.run["training"]["precision"] == "bf16_mixed"
    assert full_estimate(reading.run, replay=False).result.allocated_bytes > 0
    with pytest.raises(InputError, match="not modelled"):
        full_estimate(_read(f"{line} --beta 0.1").run, replay=False)


def test_tables_have_every_argument_of_trl() -> None:
    """Fields of ModelConfig, ScriptArguments and DatasetMixtureConfig."""
    trl = pytest.importorskip("trl")
    names = {
        name
        for one in (trl.ModelConfig, trl.ScriptArguments, trl.DatasetMixtureConfig)
        for name in one.__dataclass_fields__
    }
    assert names <= set(argument_table("script", OWN))


def test_every_switch_is_an_argument() -> None:
    """The syntax names arguments of the tables alone."""
    for tool in ("transformers.Trainer", "trl.SFTTrainer", "trl.GRPOTrainer", "trl.ORPOTrainer"):
        arguments = script_arguments(tool)
        named = arguments.syntax.switches | arguments.syntax.lists
        known = set(argument_table("others", OWN)) | set(arguments.table)
        assert named - known <= set(argument_table("examples", OWN))


def test_a_file_of_a_script_that_is_not_here_tells_the_trainer(tmp_path: Path) -> None:
    """Its keys of TRL do; keys of the script's own classes are read as its options are."""
    (tmp_path / "own.yaml").write_text(
        "model_name: Qwen/Qwen2.5-0.5B\nnum_generations: 4\nmax_completion_length: 256\n"
        "per_device_train_batch_size: 4\nmy_flag: 3\n"
    )
    found = _read("python train.py --config own.yaml --beta 0.1", tmp_path)
    assert found.problems == []
    assert found.run["model"]["name"] == "Qwen/Qwen2.5-0.5B"
    assert found.run["program"]["tool"] == "trl.GRPOTrainer"
    assert found.run["program"]["args"]["beta"] == 0.1
    assert any(
        one.startswith("train.py uses trl.GRPOTrainer, because of ") for one in found.assumed
    )
    assert any("my_flag" in one.key for one in found.limits)


@pytest.mark.parametrize(
    "line",
    [
        "sft.py --config model.yaml --config train.yaml",
        "sft.py --config=model.yaml --training_config train.yaml",
    ],
)
def test_a_second_file_of_a_command_is_read(line: str, tmp_path: Path) -> None:
    """The later one wins."""
    (tmp_path / "model.yaml").write_text("model_name: Qwen/Qwen2.5-0.5B\nlearning_rate: 1.0\n")
    (tmp_path / "train.yaml").write_text("per_device_train_batch_size: 2\nlearning_rate: 2.0\n")
    found = _read(f"python {line}", tmp_path)
    assert found.problems == []
    assert found.run["model"]["name"] == "Qwen/Qwen2.5-0.5B"
    assert found.run["program"]["args"]["per_device_train_batch_size"] == 2


def test_deepspeeds_file_of_a_loop_of_its_own_is_no_file_of_arguments(tmp_path: Path) -> None:
    """Its keys are DeepSpeed's; that it is not read is said."""
    (tmp_path / "ds.json").write_text('{"bf16": {"enabled": true}}')
    words = "--model_name_or_path Qwen/Qwen2.5-0.5B --deepspeed_config ds.json"
    found = _read(f"deepspeed own_loop.py {words}", tmp_path)
    assert found.problems == []
    assert "bf16" not in found.run["program"]["args"]
    assert any("deepspeed_config" in one.key for one in found.limits)


def test_a_secret_of_a_script_takes_no_memory() -> None:
    """Its name alone does not keep the verdict open."""
    found = _read("python own_loop.py --model gpt2 --max_length 64 --api_key abc --odd 3")
    keys = [one.key for one in found.limits]
    assert any("--odd" in key for key in keys)
    assert not any("api_key" in key for key in keys)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "python ./ktransformers/local_chat.py --model_path owner/model --gguf_path x",
            "ktransformers/local_chat.py takes a GGUF file",
        ),
        ("python ktransformers/server/main.py --gguf_path x", "server/main.py takes a GGUF file"),
        ("python generate.py --model Qwen/Qwen3-8B", "generate.py serves or generates"),
        ("python cli_demo.py --checkpoint-path Qwen/Qwen3-8B", "serves or generates"),
    ],
)
def test_a_script_that_serves_is_no_training(line: str, words: str) -> None:
    """It is refused by name."""
    with pytest.raises(UnknownToolError, match=words):
        reading_of(line)


def test_a_training_may_have_any_name() -> None:
    """An option of a training decides."""
    assert reading_of("python chat.py --model_name_or_path gpt2 --output_dir x").run["program"]
