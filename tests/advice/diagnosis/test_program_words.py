"""A change of a program in options of its command, of which the estimate is made."""

from __future__ import annotations

import re

import pytest

from gpu_mem_calculator.advice.diagnosis.program_words import program_words, word_rows
from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.estimates.fit_verdict import FITS
from gpu_mem_calculator.runfile.read import with_settings
from gpu_mem_calculator.tools.read import TEXT_ALONE, Asked, read

MODEL = "--model_name_or_path Qwen/Qwen2.5-1.5B --per_device_train_batch_size 4"
TRAINER = f"python run_clm.py {MODEL} --block_size 4096 --bf16 --gradient_checkpointing"
TRL = f"trl sft {MODEL} --dataset_name a --max_length 4096 --bf16"
FACTORY = f"llamafactory-cli train {MODEL} --stage sft --do_train true --dataset a --bf16 true"
SWIFT = "swift sft --model Qwen/Qwen2.5-1.5B --tuner_type full --dataset a --max_length 2048"
SWIFT += " --torch_dtype bfloat16 --per_device_train_batch_size 1"
SHARDED = ("hardware.num_gpus=4", "engine.type=fsdp")
FACTORY += " --finetuning_type full --cutoff_len 4096"
LIGER, PURE = "training.liger=true", "training.precision=bf16_pure"


def asked(command: str, gib: int) -> Asked:
    """A command on a card of so many GiB."""
    found = read(command, TEXT_ALONE)
    run = with_settings(found.run, [f"hardware.gpu_memory_bytes={gib * 2**30}"])
    return Asked(run=run, reading=found.reading)


@pytest.mark.parametrize(
    ("command", "settings", "words"),
    [
        (TRAINER, (LIGER, PURE), "--use_liger_kernel true --dtype bfloat16 --bf16 false"),
        (FACTORY, (LIGER, PURE), "--enable_liger_kernel true --pure_bf16 true --bf16 false"),
        (
            TRL,
            (LIGER, "training.lora.r=8", PURE, "training.autocast=true"),
            "--use_liger_kernel true --use_peft true --lora_r 8 --dtype bfloat16 --bf16 true",
        ),
        (
            SWIFT,
            ("training.lora.r=8", "training.lora.target_modules=all-linear", LIGER),
            "--tuner_type lora --lora_rank 8 --target_modules all-linear --use_liger_kernel true",
        ),
    ],
)
def test_options_are_those_of_the_tool(command: str, settings: tuple[str, ...], words: str) -> None:
    """And the command that has them fits, as it is read."""
    assert program_words(asked(command, 24), settings) == words
    assert full_estimate(asked(f"{command} {words}", 24).run).result.verdict == FITS


def test_sharding_is_the_program_s_and_cards_are_the_launcher_s() -> None:
    """Another card is named in the sentence; more GPUs than a machine has have no option."""
    words = "--nproc_per_node 4 --fsdp 'full_shard auto_wrap' --use_liger_kernel true"
    assert program_words(asked(TRAINER, 24), (*SHARDED, LIGER)) == words
    changed = f"torchrun --nproc_per_node 4 {TRAINER[len('python ') :]}{words[18:]}"
    found = asked(changed, 24)
    assert found.run["hardware"]["num_gpus"] == 4
    assert full_estimate(found.run).result.verdict == FITS
    larger = ("hardware.gpu=h100-80gb-sxm", "hardware.gpu_memory_bytes=null")
    assert program_words(asked(TRAINER, 24), (*larger, LIGER)) == "--use_liger_kernel true"
    assert program_words(asked(TRAINER, 24), ("hardware.num_gpus=32", *SHARDED[1:], LIGER)) == ""
    swift = program_words(asked(SWIFT, 24), (*SHARDED, LIGER))
    assert swift == "NPROC_PER_NODE=4 --fsdp 'full_shard auto_wrap' --use_liger_kernel true"


def test_options_with_which_it_does_not_fit_are_not_given() -> None:
    """Nor what a tool cannot say, nor for a run file."""
    assert program_words(asked(TRAINER, 8), (LIGER, PURE)) == ""
    assert program_words(asked(TRAINER, 24), (LIGER, "training.lora.r=8")) == ""
    assert program_words(asked(TRAINER, 24), ("engine.type=fsdp",)) == ""
    assert program_words(read({"model": {"name": "gpt2"}}), (LIGER,)) == ""


def test_what_no_argument_says_is_a_variable_in_front() -> None:
    """Of the allocator."""
    expandable = "training.pytorch_alloc_conf=expandable_segments:True"
    words = program_words(asked(TRAINER, 24), (LIGER, PURE, expandable))
    assert words.startswith("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True --")


def test_every_row_has_words_that_are_options() -> None:
    """Or a variable, or none where nothing changes."""
    for row in word_rows():
        for words in row["words"].values():
            assert re.fullmatch(r"(?:--[a-z0-9_]+ (?:\S+|'.+') ?)*|[A-Z_]+=\S+", words), words
