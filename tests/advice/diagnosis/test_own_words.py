"""A change of a run in the words of its own tool."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.advice.diagnosis.own_words import changed_words, in_own_options
from gpu_mem_calculator.tools.read import TEXT_ALONE, read
from gpu_mem_calculator.tools.writing.writers import WRITERS

TRL = "trl sft --model_name_or_path Qwen/Qwen2.5-7B --dataset_name a --max_length 4096"
VLLM = "vllm serve Qwen/Qwen2.5-7B --max-model-len 8192"
LORA = ("training.lora.r=16", "training.lora.target_modules=all-linear")
AXOLOTL = (
    "base_model: Qwen/Qwen2.5-7B\nmicro_batch_size: 4\nsequence_len: 2048\nflash_attention: true"
)


@pytest.mark.parametrize(
    ("source", "settings", "words"),
    [
        (TRL, LORA, "--use_peft true --lora_r 16"),
        (TRL, ("training.batch_size=2",), "--per_device_train_batch_size 2"),
        (VLLM, ("inference.kv_cache_dtype=fp8",), "--kv-cache-dtype fp8"),
        (VLLM, ("inference.max_seq_len=4096",), "--max-model-len 4096"),
        (AXOLOTL, ("training.batch_size=1",), "micro_batch_size: 1"),
    ],
)
def test_a_change_is_said_in_the_tools_words(
    source: str, settings: tuple[str, ...], words: str
) -> None:
    """Options of a command, keys of a file."""
    assert words in changed_words(read(source, TEXT_ALONE), settings)


def test_what_a_tool_cannot_say_is_not_said() -> None:
    """Nor for a run file, which is no other tool's."""
    assert changed_words(read(TRL, TEXT_ALONE), ("training.optimizer=muon",)) == ""
    trainer = "python run_clm.py --model_name_or_path Qwen/Qwen2.5-1.5B --bf16"
    assert changed_words(read(trainer, TEXT_ALONE), ("training.liger=true", *LORA)) == ""
    assert changed_words(read(trainer, TEXT_ALONE), ("training.precision=bf16_pure",)) == ""
    assert changed_words(read({"model": {"name": "gpt2"}}), ("training.batch_size=2",)) == ""


def test_nothing_changes_without_settings() -> None:
    """For every server that can be written."""
    for name, form in WRITERS.items():
        if form.serves and form.options:
            run = {"model": {"name": "qwen2.5-7b"}, "inference": {"engine": name}}
            assert changed_words(read(run), ()) == "", name


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        (["vllm"], "Give it more (--gpu-memory-utilization 0.9)."),
        (["sglang"], "Give it more (--mem-fraction-static)."),
        (["nvidia", "vllm"], "Give it more (--gpu-memory-utilization 0.9)."),
        (["tgi"], "Give it more."),
        ([], "Give it more (--gpu-memory-utilization 0.9, --mem-fraction-static)."),
    ],
)
def test_advice_has_the_options_of_the_tool_that_printed(tools: list[str], said: str) -> None:
    """None where none of the tools has one; all of them where no tool is known."""
    sentence = "Give it more (--gpu-memory-utilization 0.9, --mem-fraction-static)."
    assert in_own_options(sentence, tools) == said


def test_what_is_no_option_stays_in_its_parentheses() -> None:
    """And short options are known."""
    sentence = "Shard them (ZeRO, FSDP), or ask for less (-c, num_ctx)."
    assert (
        in_own_options(sentence, ["llamacpp"]) == "Shard them (ZeRO, FSDP), or ask for less (-c)."
    )
    ollama = in_own_options(sentence, ["ollama", "llamacpp"])
    assert ollama == "Shard them (ZeRO, FSDP), or ask for less (num_ctx)."
