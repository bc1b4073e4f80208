"""Other people's names, values and counts become ours, or are answered with ours."""

from typing import Any

import pytest

from gpu_mem_calculator.runfile.other_names import VALUES, tables
from gpu_mem_calculator.runfile.own_names import is_own, own_names
from gpu_mem_calculator.runfile.read import as_dict, with_settings
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read

MODEL = {"model": {"name": "llama3.2-1b"}}


@pytest.mark.parametrize(
    ("setting", "section", "ours"),
    [
        ("training.gradient_checkpointing=true", "training", {"activation_checkpointing": "full"}),
        ("gradient_checkpointing=false", "training", {"activation_checkpointing": "none"}),
        ("training.per_device_train_batch_size=4", "training", {"batch_size": 4}),
        ("training.bf16=true", "training", {"dtype": "bf16"}),
        ("training.bf16=false", "training", {"dtype": "fp32"}),
        ("fp16=true", "training", {"dtype": "fp16"}),
        ("training.optim=adamw_torch", "training", {"optimizer": "adamw"}),
        (
            "training.optim=adamw_torch_fused",
            "training",
            {"optimizer": "adamw", "optimizer_implementation": "fused"},
        ),
        ("training.optimizer=adamw_bnb_8bit", "training", {"optimizer": "adamw_8bit"}),
        (
            "training.optim=paged_adamw_8bit",
            "training",
            {"optimizer": "paged_adamw_8bit", "embedding_states_32bit": True},
        ),
        ("training.attn_implementation=sdpa", "training", {"attention": "sdpa"}),
        ("model.attn_implementation=eager", "training", {"attention": "eager"}),
        ("training.max_length=2048", "training", {"seq_len": 2048}),
        ("training.max_seq_length=128k", "training", {"seq_len": 131072}),
        ("seq_len=1M", "training", {"seq_len": 2**20}),
        ("training.seq_len=4,096", "training", {"seq_len": 4096}),
        ("engine.reduce_bucket_size=500M", "engine", {"reduce_bucket_size": 500_000_000}),
        ("training.lora_r=32", "training", {"lora": {"r": 32}}),
        ("training.lora.lora_dropout=0.05", "training", {"lora": {"dropout": 0.05}}),
        ("training.lora.use_dora=true", "training", {"lora": {"dora": True}}),
        ("training.load_in_4bit=true", "training", {"quantization": "nf4", "double_quant": False}),
        ("training.load_in_8bit=true", "training", {"quantization": "int8"}),
        ("training.bnb_4bit_quant_type=nf4", "training", {"quantization": "nf4"}),
        ("engine.type=zero3", "engine", {"type": "deepspeed", "zero_stage": 3}),
        ("engine.type=ZeRO-2", "engine", {"type": "deepspeed", "zero_stage": 2}),
        ("engine=fsdp2", "engine", {"type": "fsdp"}),
        ("hardware.num_processes=8", "hardware", {"num_gpus": 8}),
        ("use_liger_kernel=true", "training", {"liger": True}),
        ("cut_cross_entropy=true", "training", {"loss": "cut"}),
        ("use_reentrant_gc=true", "training", {"checkpoint_reentrant": True}),
        ("disable_gradient_checkpointing=true", "training", {"activation_checkpointing": "none"}),
        ("enable_activation_checkpointing=true", "training", {"activation_checkpointing": "full"}),
    ],
)
def test_a_name_that_people_use_is_ours(setting: str, section: str, ours: Any) -> None:
    """In `--set`, with a section or without, and in a run file."""
    assert with_settings(dict(MODEL), [setting])[section] == ours


@pytest.mark.parametrize("name", ["lora_alpha", "lora.lora_alpha", "learning_rate", "lora.bias"])
def test_what_takes_no_memory_is_accepted(name: str) -> None:
    """The key is left out of the run."""
    data = with_settings({**MODEL, "training": {"lora": {"r": 8}}}, [f"training.{name}=32"])
    assert data["training"] == {"lora": {"r": 8}}


def test_a_run_file_has_the_same_names() -> None:
    """Sections, adapters and a name beside the sections; several keys at once."""
    training = {
        "per_device_train_batch_size": 2,
        "bf16": True,
        "fp16": False,
        "max_length": "8k",
        "lora": {"lora_alpha": 16, "rank": 4},
    }
    run = read({"model": "llama3.2-1b", "training": training, "optim": "adafactor"}).file
    assert run.model.name == "llama3.2-1b"
    assert as_dict(run.training) == {
        "batch_size": 2,
        "dtype": "bf16",
        "seq_len": 8192,
        "optimizer": "adafactor_transformers",
        "lora": {"r": 4, "dropout": 0.0, "dora": False, "adapter_dtype": "fp32"},
    }


def test_a_setting_wins_over_the_file_in_either_name() -> None:
    """Whichever name the file and the setting use."""
    file = {**MODEL, "training": {"gradient_checkpointing": True, "batch_size": 1}}
    settings = ["training.activation_checkpointing=none", "training.micro_batch_size=8"]
    ours = {"activation_checkpointing": "none", "batch_size": 8}
    assert with_settings(file, settings)["training"] == ours


def test_a_server_has_its_own_names() -> None:
    """The same word may mean another key in a run that serves."""
    data = with_settings({**MODEL, "inference": {"engine": "vllm"}}, ["max_model_len=32k", "tp=2"])
    ours = {"engine": "vllm", "max_seq_len": 32768, "tensor_parallel_size": 2}
    assert data["inference"] == ours


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"per_device_train_batch_size": 4, "batch_size": 2}, "contradicts training.batch_size=2"),
        ({"gradient_checkpointing": True, "activation_checkpointing": "none"}, "contradicts"),
        ({"bf16": True, "fp16": True}, "contradicts training.dtype='bf16'"),
        ({"torch_dtype": "bfloat16"}, "use training.precision=bf16_pure"),
        ({"deepspeed": "ds.json"}, "use engine.type=deepspeed"),
        ({"gradient_checkpointing": 3}, "must be true or false"),
        ({"gradient_checkpoints": 1}, "training.gradient_checkpoints is not a known key"),
    ],
)
def test_what_has_no_key_here_is_answered(training: dict[str, Any], words: str) -> None:
    """One sentence, which names what to write; no suggestion that means something else."""
    with pytest.raises(InputError) as error:
        read({**MODEL, "training": training}).checked()
    assert len(error.value.problems) == 1
    assert words in error.value.problems[0]
    assert "gradient_clipping" not in error.value.problems[0]


def test_every_meaning_is_a_key_of_a_run_file() -> None:
    """No table leads to a key that does not exist."""
    names = tables()
    meanings = [*names["flags"].values(), *names["defaults"].values(), *VALUES.values()]
    keys = {key for table in meanings for meaning in table.values() for key in meaning}
    for table in ("renamed", "lora_renamed", "serving_renamed"):
        keys |= set(names[table].values())
    assert all(map(is_own, keys)), keys


def test_a_file_that_is_no_run_file_is_left_alone() -> None:
    """DeepSpeed's configuration keeps its names."""
    data = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3}}
    assert own_names(data) == (data, [])
