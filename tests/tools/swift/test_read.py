"""ms-swift's commands as run files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.launchers.launch import read_launch
from gpu_mem_calculator.tools.program_section import with_program
from gpu_mem_calculator.tools.reading.named_files import NamedFiles
from gpu_mem_calculator.tools.reading.reading import Reading
from gpu_mem_calculator.tools.reading.tools import read_command, read_data
from gpu_mem_calculator.tools.swift.read import SWIFT

SFT = "swift sft --model qwen2.5-0.5b --dataset a#500 b --max_length 1024"
MEGATRON = "megatron sft --model qwen2.5-0.5b --dataset a --max_length 1024"


def _read(words: str, files: NamedFiles | None = None, **variables: str) -> Reading:
    return read_command(read_launch(words.split(), files or NamedFiles(None), variables))


def test_a_plain_command_is_lora_with_recompute() -> None:
    """bf16 weights under autocast, adapters on all linear layers, reentrant recompute."""
    reading = _read(SFT, CUDA_VISIBLE_DEVICES="0")
    program = reading.run["program"]
    assert program["tool"] == "transformers.Trainer"
    assert program["args"] == {
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 16,
        "bf16": True,
        "fp16": False,
        "eval_strategy": "no",
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": True},
    }
    assert program["load"] == {"dtype": "bfloat16", "device_map": {"": 0}}
    assert program["peft"] == {
        "r": 8,
        "target_modules": "all-linear",
        "lora_dropout": 0.05,
        "task_type": "CAUSAL_LM",
    }
    assert reading.run["hardware"] == {"num_gpus": 1}
    assert not reading.limits
    run = _read(f"{SFT} --gradient_accumulation_steps 1").run
    assert full_estimate(run | {"hardware": {"gpu": "h200"}}).result.allocated_bytes > 0


@pytest.mark.parametrize(
    ("words", "where", "value"),
    [
        ("--tuner_type full", "peft", None),
        ("--torch_dtype float16", "args.fp16", True),
        ("--torch_dtype float32", "load.dtype", "float32"),
        ("--attn_impl flash_attn", "load.attn_implementation", "flash_attention_2"),
        ("--gradient_checkpointing false", "args.gradient_checkpointing", False),
        ("--split_dataset_ratio 0.01", "args.eval_strategy", "steps"),
        ("--val_dataset v --eval_strategy epoch", "args.eval_strategy", "epoch"),
        ("--deepspeed zero2", "deepspeed.zero_optimization.stage", 2),
        ("--deepspeed zero3", "load.device_map", None),
        ("--fsdp fsdp2", "fsdp_config.activation_checkpointing", True),
        ("--fsdp fsdp2", "args.gradient_checkpointing", False),
        (
            "--lora_rank 64 --target_modules q_proj v_proj",
            "peft.target_modules",
            ["q_proj", "v_proj"],
        ),
        ("--quant_method bnb --quant_bits 4", "quantization.load_in_4bit", True),
        ("--attn_impl flash_attn --packing true --packing_length 4096", "data.seq_len", 4096),
        ("--use_liger_kernel true", "args.use_liger_kernel", True),
        (
            "--use_liger_kernel true --enable_dft_loss true",
            "args.liger_kernel_config",
            {"fused_linear_cross_entropy": False},
        ),
    ],
)
def test_options_that_change_the_program(words: str, where: str, value: Any) -> None:
    """Each option has its effect on the program."""
    found: Any = _read(f"{SFT} {words}").run["program"]
    for part in where.split("."):
        found = (found or {}).get(part)
    assert found == value


def test_processes_and_gpus() -> None:
    """NPROC_PER_NODE starts processes; without it one process spreads over its GPUs."""
    many = _read(SFT, NPROC_PER_NODE="4", NNODES="2", CUDA_VISIBLE_DEVICES="0,1,2,3")
    assert many.run["hardware"] == {"num_gpus": 8, "num_nodes": 2}
    assert many.run["program"]["args"]["gradient_accumulation_steps"] == 2
    kinds = many.run["program"]["args"]["gradient_checkpointing_kwargs"]
    assert kinds == {"use_reentrant": False}  # under DDP
    spread = _read(SFT, CUDA_VISIBLE_DEVICES="0,1")
    assert spread.run["hardware"] == {"num_gpus": 1}
    assert [limit.could for limit in spread.limits] == ["less"]
    torchrun = _read(f"torchrun --nproc_per_node 4 swift/cli/sft.py {SFT[10:]}")
    assert torchrun.run["hardware"] == {"num_gpus": 4}


@pytest.mark.parametrize(
    ("words", "tool", "could"),
    [
        ("--rlhf_type dpo", "trl.DPOTrainer", ["more"]),
        ("--rlhf_type kto --loss_type kto", "trl.KTOTrainer", ["more"]),
        ("--rlhf_type rm", "trl.RewardTrainer", ["more"]),
        ("--rlhf_type grpo --loss_type dr_grpo", "trl.GRPOTrainer", ["more"]),
        ("--rlhf_type gkd --teacher_model x", "swift.gkd", ["more"]),
    ],
)
def test_rlhf_is_a_trainer_of_trl(words: str, tool: str, could: list[str]) -> None:
    """Its losses need all logits, which is named."""
    reading = _read(f"{SFT.replace('sft', 'rlhf', 1)} {words}")
    assert reading.run["program"]["tool"] == tool
    assert [limit.could for limit in reading.limits] == could


def test_grpo_has_a_prompt_and_vllm() -> None:
    """max_length is that of prompts; vLLM on the same card sleeps where it is asked to."""
    words = "--rlhf_type grpo --use_vllm true --vllm_mode colocate --sleep_level 1 --beta 0.0"
    run = _read(f"{SFT.replace('sft', 'rlhf', 1)} {words}").run
    program, generation = run["program"], with_program(run, {})[0]["training"]["generation"]
    assert generation["sleep_level"] == 1
    assert generation["new_tokens"] == 512
    assert program["data"] == {"prompt": 1024}
    assert program["args"]["vllm_enable_sleep_mode"] is True
    assert program["args"]["beta"] == 0.0


def test_a_switch_may_say_no() -> None:
    """As scripts of 2.x do."""
    reading = _read(f"{SFT} --gradient_checkpointing no")
    assert reading.problems == []
    assert not reading.run["program"]["args"].get("gradient_checkpointing")


def test_megatron_has_its_own_sections() -> None:
    """Attention is computed again by default; the fewest GPUs are assumed."""
    reading = _read(f"{MEGATRON} --tensor_model_parallel_size 2 --global_batch_size 8")
    run = reading.run
    assert run["hardware"] == {"num_gpus": 2}
    assert run["parallelism"] == {"tensor_parallel_size": 2}
    assert run["training"]["gradient_accumulation_steps"] == 8
    assert run["training"]["recompute"]["recompute_granularity"] == "selective"
    assert run["engine"]["type"] == "megatron_lm"
    assert full_estimate({**run, "hardware": {"gpu": "h200", "num_gpus": 2}})


def test_megatron_switches_off_what_one_rank_cannot_do() -> None:
    """Sequence parallelism needs tensor parallelism; a version of flash-attn is the same kernel."""
    run = _read(f"{MEGATRON} --sequence_parallel true --attention_backend flash_3").run
    assert run["parallelism"] == {}
    assert run["engine"]["attention_backend"] == "flash"


def test_megatron_takes_sequence_parallelism_and_the_fused_loss() -> None:
    """Both were lost: True is 1, and the loss was not read."""
    words = "--tensor_model_parallel_size 2 --sequence_parallel true --cross_entropy_loss_fusion"
    run = _read(f"{MEGATRON} {words} true", NPROC_PER_NODE="4").run
    assert run["parallelism"] == {"tensor_parallel_size": 2, "sequence_parallel": True}
    assert run["training"]["loss"] == "megatron_fused"
    te = _read(f"{MEGATRON} {words} true --cross_entropy_fusion_impl te", NPROC_PER_NODE="4").run
    assert te["training"]["loss"] == "te_fused"


def test_names_of_megatron_before_ms_swift_4() -> None:
    """The model by the folder of its converted weights; `no_` turns a value round."""
    words = "megatron sft --load out/Qwen2.5-7B-Instruct-mcore --save o --max_length 1024"
    old = "--train_type full --no_masked_softmax_fusion true --num_workers 4 --save_interval 9"
    reading = _read(f"{words} {old}", NPROC_PER_NODE="2")
    assert reading.problems == []
    assert reading.run["model"] == {"name": "Qwen2.5-7B-Instruct"}
    assert reading.run["engine"]["masked_softmax_fusion"] is False
    assert any("load is mcore_model" in note for note in reading.assumed)


def test_megatron_with_full_recompute() -> None:
    """One layer at a time is the plain form; others keep Megatron's own keys."""
    full = f"{MEGATRON} --recompute_granularity full"
    one = _read(f"{full} --recompute_method uniform --recompute_num_layers 1").run["training"]
    assert one["activation_checkpointing"] == "full"
    two = _read(f"{full} --recompute_method block --recompute_num_layers 2").run["training"]
    assert two["recompute"]["recompute_num_layers"] == 2


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (f"{SFT} --lora_rnk 8", "--lora_rnk is not an option of ms-swift; did you mean"),
        (f"{SFT} --lora_rank many", "lora_rank='many' must be a whole number"),
    ],
)
def test_a_mistake_is_one_sentence(words: str, problem: str) -> None:
    """The sentence names the option."""
    (sentence,) = _read(words).problems
    assert problem in sentence


def test_a_dtype_of_adapters_that_does_not_exist_is_refused() -> None:
    """ms-swift has three words for it; without one, adapters are in fp32."""
    with pytest.raises(InputError, match="lora_dtype='int8' must be one of"):
        _read("swift sft --model llama3.2-1b --train_type lora --lora_dtype int8")


def test_other_commands_are_refused() -> None:
    """Only training is read."""
    with pytest.raises(InputError, match="swift deploy does not train"):
        _read("swift deploy --model x")


def test_a_file_has_the_same_arguments(tmp_path: Path) -> None:
    """Its ENV are variables, and options behind it win."""
    data: dict[str, Any] = {
        "ENV": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        "tuner_type": "full",
    }
    data |= {"model": "qwen2.5-0.5b", "dataset": ["a"], "max_length": 64}
    (tmp_path / "sft.yaml").write_text(json.dumps(data), encoding="utf-8")
    run = _read("swift sft sft.yaml --max_length 128", NamedFiles(tmp_path)).run
    assert run["training"] == {"pytorch_alloc_conf": "expandable_segments:True"}
    assert run["program"]["data"] == {"seq_len": 128}
    found = read_data(data, NamedFiles(None))
    assert found is not None
    assert found.run["program"]["data"] == {"seq_len": 64}


def test_the_arguments_of_the_trainer_for_sequences_are_in_the_table() -> None:
    """Those that Seq2SeqTrainingArguments has beside TrainingArguments (transformers 5.17.0)."""
    own = {"sortish_sampler", "predict_with_generate", "generation_config"}
    assert own | {"generation_max_length", "generation_num_beams"} <= set(SWIFT)


def test_a_model_type_names_the_model_before_3() -> None:
    """With the words that --deepspeed, --max_length and --lora_dtype had then."""
    words = "swift sft --sft_type lora --model_type qwen1half-7b-chat --max_length -1"
    reading = _read(f"{words} --deepspeed default-zero2 --lora_dtype AUTO")
    assert reading.problems == []
    assert reading.run["model"] == {"name": "Qwen/Qwen1.5-7B-Chat"}
    assert reading.run["program"]["deepspeed"]["zero_optimization"]["stage"] == 2
    assert any("is Qwen/Qwen1.5-7B-Chat, as ms-swift before 3.0" in one for one in reading.assumed)
    (said,) = _read("swift sft --model_type qwen1half-7b-chaat").problems[:1]
    assert "did you mean 'qwen1half-7b-chat'?" in said


def test_options_that_are_left_out_are_named() -> None:
    """`...` stands for options that are not known."""
    reading = _read("swift sft --model Qwen/Qwen2.5-7B --dataset a ...")
    assert reading.problems == []
    assert [one.key for one in reading.limits] == ["..."]
