"""LLaMA-Factory's files and commands as run files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.launchers.launch import read_launch
from gpu_mem_calculator.tools.llamafactory.read import read_data
from gpu_mem_calculator.tools.llamafactory.training import TABLE
from gpu_mem_calculator.tools.reading.named_files import NamedFiles
from gpu_mem_calculator.tools.reading.reading import Reading
from gpu_mem_calculator.tools.reading.tools import read_command

NO_FILES = NamedFiles(None)
LORA = {
    "model_name_or_path": "llama3.2-1b",
    "stage": "sft",
    "do_train": True,
    "finetuning_type": "lora",
    "cutoff_len": 1020,
    "bf16": True,
    "per_device_train_batch_size": 2,
}
FULL = {**LORA, "finetuning_type": "full"}


def _read(*parts: dict[str, Any]) -> Reading:
    given: dict[str, Any] = {}
    for part in parts:
        given |= part
    return read_data(given, NO_FILES)


def _command(folder: Path, words: str, data: dict[str, Any] = LORA, **variables: str) -> Reading:
    (folder / "sft.yaml").write_text(json.dumps(data), encoding="utf-8")
    return read_command(read_launch(words.split(), NamedFiles(folder), variables))


def test_a_lora_file_is_the_trainer_with_recompute() -> None:
    """Recompute is on and reentrant, rows are padded to 8, all linear layers have adapters."""
    reading = _read(LORA)
    program = reading.run["program"]
    assert program["tool"] == "transformers.Trainer"
    assert program["args"] == {
        "bf16": True,
        "per_device_train_batch_size": 2,
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": True},
    }
    assert program["load"] == {"dtype": "auto", "device_map": {"": 0}}
    assert program["peft"]["target_modules"] == "all-linear"
    assert program["data"] == {"seq_len": 1024}
    assert not reading.limits
    assert not reading.problems
    assert full_estimate(reading.run | {"hardware": {"gpu": "h200"}}).result.allocated_bytes > 0


@pytest.mark.parametrize(
    ("given", "where", "value"),
    [
        ({}, "load.dtype", "float32"),
        ({"pure_bf16": True}, "load.dtype", "auto"),
        ({"deepspeed": "examples/deepspeed/ds_z3_config.json"}, "load.dtype", "auto"),
        ({"deepspeed": "examples/deepspeed/ds_z2_config.json"}, "load.dtype", "float32"),
        ({"deepspeed": "ds_z2_config.json"}, "deepspeed.zero_optimization.stage", 2),
        ({"flash_attn": "fa2"}, "load.attn_implementation", "flash_attention_2"),
        ({"flash_attn": "disabled"}, "load.attn_implementation", "eager"),
        ({"low_cpu_mem_usage": False}, "load.device_map", None),
        ({"disable_gradient_checkpointing": True}, "args.gradient_checkpointing", False),
        ({"use_reentrant_gc": False}, "args.gradient_checkpointing_kwargs.use_reentrant", False),
        ({"enable_liger_kernel": True}, "args.use_liger_kernel", True),
        (
            {"enable_liger_kernel": True, "use_dft_loss": True},
            "args.liger_kernel_config",
            {"fused_linear_cross_entropy": False},
        ),
        ({"stage": "pt"}, "data.seq_len", 1020),
        ({"stage": "pt", "packing": True}, "data.seq_len", 1019),
        ({"optim": "adamw_8bit"}, "args.optim", "adamw_8bit"),
        ({"learning_rate": 1e-4}, "args.learning_rate", None),
    ],
)
def test_keys_that_change_the_program(given: dict[str, Any], where: str, value: Any) -> None:
    """Each key of full training has its effect on the program."""
    found: Any = _read(FULL, given).run["program"]
    for part in where.split("."):
        found = (found or {}).get(part)
    assert found == value


def test_a_quantized_base_is_not_prepared_by_peft() -> None:
    """bitsandbytes with double quantization, whose norms keep their dtype."""
    run = _read(LORA, {"quantization_bit": 4, "lora_target": "q_proj, v_proj"}).run
    assert run["program"]["quantization"] == {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": "bfloat16",
        "bnb_4bit_quant_storage": "bfloat16",
    }
    assert run["training"] == {"upcast_unquantized": False}
    assert run["program"]["peft"]["target_modules"] == ["q_proj", "v_proj"]


@pytest.mark.parametrize(
    ("given", "key", "could"),
    [
        ({"use_galore": True}, "use_galore=true", "less"),
        ({"use_unsloth": True}, "use_unsloth=true", "either"),
        ({"finetuning_type": "freeze"}, "finetuning_type=freeze", "less"),
        ({"finetuning_type": "freeze", "freeze_trainable_layers": -2}, "finetuning_type", "either"),
        ({"stage": "dpo"}, "stage=dpo", "more"),
        ({"neat_packing": True}, "neat_packing=true", "more"),
        ({"upcast_layernorm": True}, "upcast_layernorm=true", "more"),
    ],
)
def test_what_is_not_modelled_is_named(given: dict[str, Any], key: str, could: str) -> None:
    """A limit says whether the run could take more or less."""
    (limit,) = _read(FULL, given).limits
    assert limit.key.startswith(key)
    assert limit.could == could


def test_a_default_that_is_written_is_no_limit() -> None:
    """A key at its default changes nothing."""
    given = {"use_galore": False, "neat_packing": False, "image_max_pixels": 589824}
    assert _read(FULL, given).run == _read(FULL).run
    assert not _read(FULL, given).limits


def test_a_model_that_is_not_said_is_left_to_the_one_who_asks() -> None:
    """Check then names the option that says it."""
    reading = _read(LORA, {"model_name_or_path": None})
    assert not reading.problems
    assert "model" not in reading.run


def test_a_fused_matrix_of_baichuan_is_counted_as_three() -> None:
    """Its model is counted as Llama's; the limit says that it can take less."""
    reading = _read(LORA, {"finetuning_type": "lora", "lora_target": "W_pack,o_proj"})
    names = ["q_proj", "k_proj", "v_proj", "o_proj"]
    assert reading.run["program"]["peft"]["target_modules"] == names
    assert [one.key for one in reading.limits] == ["lora_target=W_pack"]


def test_attention_was_switched_before_it_was_chosen() -> None:
    """--flash_attn True and False, as until 0.6."""
    attention = [_read(LORA, {"flash_attn": one}).run["program"]["load"] for one in (True, False)]
    assert [one["attn_implementation"] for one in attention] == ["flash_attention_2", "eager"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"lora_rnk": 8}, "lora_rnk is not a key of LLaMA-Factory ff6d4d1; did you mean"),
        ({"cutoff_len": "long"}, "cutoff_len='long' must be a whole number"),
        ({"pure_bf16": "yes"}, "pure_bf16='yes' must be true or false"),
    ],
)
def test_a_mistake_is_one_sentence(given: dict[str, Any], problem: str) -> None:
    """The sentence names the key and its value."""
    (sentence,) = _read(LORA, given).problems
    assert problem in sentence


@pytest.mark.parametrize(
    "given", [{"flash_attn": "fa9"}, {"quantization_bit": 3}, {"deepspeed": 3}]
)
def test_a_value_that_does_not_exist_is_refused(given: dict[str, Any]) -> None:
    """One sentence, no traceback."""
    with pytest.raises(InputError):
        _read(LORA, given)


@pytest.mark.parametrize(
    ("given", "tool"),
    [
        ({"stage": "ppo"}, "llamafactory.ppo"),
        ({"use_kt": True}, "ktransformers"),
        ({"do_train": False}, "llamafactory.predict"),
    ],
)
def test_a_program_that_is_refused_as_a_whole(given: dict[str, Any], tool: str) -> None:
    """Its estimate is one sentence."""
    run = _read(LORA, given).run
    assert run["program"]["tool"] == tool
    with pytest.raises(InputError, match="is not modelled"):
        full_estimate(run | {"hardware": {"gpu": "h200"}})


def test_pairs_behind_the_file_win(tmp_path: Path) -> None:
    """`key=value` words are merged into the file."""
    run = _command(
        tmp_path, "llamafactory-cli train sft.yaml cutoff_len=512 lora_target=q_proj"
    ).run
    assert run["program"]["data"]["seq_len"] == 512
    assert run["program"]["peft"]["target_modules"] == ["q_proj"]


def test_options_in_the_place_of_a_file(tmp_path: Path) -> None:
    """The same run in options, with switches."""
    words = (
        "lmf train --model_name_or_path llama3.2-1b --stage sft --do_train --bf16 --cutoff_len 1020"
    )
    run = _command(tmp_path, f"{words} --per_device_train_batch_size 2").run
    assert run == _read(LORA).run


def test_the_launcher_gives_expandable_segments(tmp_path: Path) -> None:
    """With several GPUs llamafactory-cli starts torchrun, and sets the allocator."""
    words = "llamafactory-cli train sft.yaml"
    many = _command(tmp_path, words, FORCE_TORCHRUN="1", NNODES="2", NPROC_PER_NODE="4").run
    assert many["hardware"] == {"num_gpus": 8, "num_nodes": 2}
    assert many["training"] == {"pytorch_alloc_conf": "expandable_segments:True"}
    assert "training" not in _command(tmp_path, words, CUDA_VISIBLE_DEVICES="0").run
    torchrun = _command(tmp_path, "torchrun --nproc-per-node 4 src/train.py sft.yaml").run
    assert torchrun["hardware"] == {"num_gpus": 4}
    assert "training" not in torchrun


def test_ray_reads_its_workers(tmp_path: Path) -> None:
    """ray_num_workers counts under USE_RAY alone."""
    data = {**LORA, "ray_num_workers": 4}
    words = "llamafactory-cli train sft.yaml"
    assert _command(tmp_path, words, data, USE_RAY="1").run["hardware"] == {"num_gpus": 4}
    assert "hardware" not in _command(tmp_path, words, data).run


def test_megatron_has_its_own_sections(tmp_path: Path) -> None:
    """Sizes of parallelism give the fewest GPUs."""
    given = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}
    reading = _read(FULL, given, {"recompute_granularity": "full"})
    assert reading.run["engine"] == {"type": "megatron_lm", "distributed_optimizer": True}
    assert reading.run["hardware"] == {"num_gpus": 4}
    assert reading.run["training"]["activation_checkpointing"] == "full"


def test_the_second_version_has_its_own_loop() -> None:
    """FSDP 2 with fp32 weights that are gathered in bf16."""
    data = {"model": "qwen3-0.6b", "train_dataset": "x", "dist_config": {"name": "fsdp2"}}
    reading = read_data(data, NO_FILES)
    assert reading.run["engine"]["type"] == "fsdp"
    assert reading.run["training"]["precision"] == "bf16_mixed"
    wrong = read_data({**data, "dist_config": {"name": "fsdp2", "offload_parms": 1}}, NO_FILES)
    assert "offload_params" in wrong.problems[0]


@pytest.mark.parametrize(
    "given",
    [
        {"init_config": {"name": "init_on_disk"}},
        {"quant_config": {"name": "bnb", "quantization_bit": 4, "compute_dtype": "float8"}},
    ],
)
def test_a_word_that_the_second_version_does_not_have_is_refused(given: dict[str, Any]) -> None:
    """A sentence lists its words."""
    data = {"model": "qwen3-0.6b", "train_dataset": "x", **given}
    with pytest.raises(InputError, match="must be one of"):
        read_data(data, NO_FILES)


def test_a_model_that_answers_has_a_dtype_that_exists() -> None:
    """`infer_dtype` is auto, or one of three words."""
    serving = {"model_name_or_path": "llama3.2-1b"}
    assert _read(serving, {"infer_dtype": "float32"}).run["inference"]["dtype"] == "fp32"
    with pytest.raises(InputError, match="infer_dtype='int8' must be one of"):
        _read(serving, {"infer_dtype": "int8"})


def test_the_arguments_of_the_trainer_for_sequences_are_in_the_table() -> None:
    """Those that Seq2SeqTrainingArguments has beside TrainingArguments (transformers 5.17.0)."""
    own = {"sortish_sampler", "predict_with_generate", "generation_config"}
    assert own | {"generation_max_length", "generation_num_beams"} <= set(TABLE)


OPTIONS = "--stage sft --do_train --model_name_or_path llama3.2-1b --finetuning_type lora --bf16"


@pytest.mark.parametrize("script", ["src/train_bash.py", "train_bash.py", "src/train.py"])
def test_the_scripts_of_the_repository_are_the_command(script: str) -> None:
    """`src/train_bash.py` of 2024, and `src/train.py` with options in the place of a file."""
    read = read_command(read_launch(["python", script, *OPTIONS.split()], NO_FILES))
    same = read_command(read_launch(["llamafactory-cli", "train", *OPTIONS.split()], NO_FILES))
    assert read.tool == "LLaMA-Factory"
    assert read.run == same.run


def test_a_train_script_of_another_tool_is_not_taken() -> None:
    """Only LLaMA-Factory's has a stage and a type of fine-tuning."""
    words = ["python", "train.py", "--model_name_or_path", "llama3.2-1b", "--bf16", "true"]
    assert read_command(read_launch(words, NO_FILES)).tool != "LLaMA-Factory"


def test_names_before_0_8() -> None:
    """ORPO was a stage of its own; layers of `freeze` and the cache had other names."""
    reading = _read(LORA, {"stage": "orpo", "orpo_beta": 0.1, "cache_path": "c", "ppo_logger": "x"})
    assert reading.problems == []
    assert any(limit.key == "stage=dpo" for limit in reading.limits)
    freeze = {"finetuning_type": "freeze", "num_layer_trainable": 2, "name_module_trainable": "mlp"}
    assert _read(LORA, freeze).problems == []


def test_a_file_of_the_repository_is_known_where_it_is_not_here(tmp_path: Path) -> None:
    """With the pairs of the command; a file that is here wins."""
    path = "LLaMA-Factory/examples/train_full/llama3_full_sft.yaml"
    words = f"llamafactory-cli train {path} model_name_or_path=qwen2.5-0.5b deepspeed=null"
    reading = _command(tmp_path, words)
    assert reading.run["model"] == {"name": "qwen2.5-0.5b"}
    assert f"{path} is not here; it is taken as LLaMA-Factory 0.9.3 has it" in reading.assumed
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(json.dumps(LORA), encoding="utf-8")
    assert "peft" in _command(tmp_path, words).run["program"]


def test_fp16_of_adapters_is_counted_in_float16() -> None:
    """As releases before 0.9.4 load weights; what newer ones copy is not modelled."""
    reading = _read(LORA, {"bf16": False, "fp16": True})
    assert reading.run["program"]["load"]["dtype"] == "float16"
    assert [limit.could for limit in reading.limits] == ["more"]
