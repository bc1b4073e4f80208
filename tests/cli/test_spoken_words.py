"""Words that people type: taken as they mean them, or refused with the command that exists."""

from __future__ import annotations

import pytest

from .conftest import Command

CARD = ("--gpu", "4090")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("quick llama3.2 1b", "Llama 3.2 1B"),
        ("quick gpt2 --ctx 512", "1 × 512"),
        ("quick gpt2 --context 512", "1 × 512"),
        ("quick llama3.2-1b --qlora --rank 64", "QLoRA rank 64"),
        ("quick llama3.2-1b --lora_rank=8 --qlora", "QLoRA rank 8"),
        ("quick llama3.2-1b --load-in-4bit --lora-r 8", "QLoRA rank 8"),
        ("quick llama3.2-1b --rank 8", "LoRA rank 8"),
        ("quick gpt2 --full", "bf16 mixed"),
        ("calculate --model gpt2", "GPT-2 124M"),
    ],
)
def test_words_mean_what_people_mean(command: Command, words: str, shown: str) -> None:
    """Other spellings of an option, and a model in two words."""
    answer = command(*words.split(), *CARD)
    assert (answer.code, answer.err) == (0, "")
    assert shown in answer.out


@pytest.mark.parametrize("names", ["q_proj,v_proj", "[q_proj, v_proj]", '["q_proj","v_proj"]'])
def test_modules_may_be_a_list_without_quotes(command: Command, names: str) -> None:
    """As JSON has them, and as a shell's user types them."""
    setting = f"training.lora.target_modules={names}"
    answer = command("quick", "llama3.2-1b", "--lora", *CARD, "--set", setting)
    assert "(1.7 M trained)" in answer.out


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("quick gpt2 --tp 4", "use gpu-mem-calc quick gpt2 --tp 4 --engine megatron --gpus 8"),
        ("quick gpt2 --grpo", "--grpo is a trainer of TRL: gpu-mem-calc check trl grpo"),
        ("quick gpt2 --unsloth", "--unsloth is not modelled here"),
        ("quick gpt2 model --zero3x", "--zero3x is not an option of quick"),
        ("infer gpt2 --dtype fp8", "for fp8 weights use --quantization fp8"),
    ],
)
def test_a_refusal_names_the_command_that_exists(command: Command, words: str, shown: str) -> None:
    """One sentence, exit code 2."""
    answer = command(*words.split())
    assert answer.code == 2
    assert shown in answer.err


def test_a_model_is_converted_by_its_name(command: Command) -> None:
    """With the options of `quick`."""
    answer = command("convert", "llama3.2-1b", "--qlora", "--to", "axolotl")
    assert answer.code == 0
    assert "load_in_4bit: true" in answer.out


def test_lists_have_filters(command: Command) -> None:
    """Cards by memory, models by card, and names in several words."""
    cards = command("gpus", "--mem", "24", "--format", "list").out.split()
    assert "rtx-4090" in cards
    assert "h100-80gb-sxm" not in cards
    models = command("presets", "llama3", "--gpu", "4060ti", "--format", "list").out.split()
    assert "llama3.2-1b" in models
    assert "llama3-70b" not in models
    assert command("presets", "deepseek", "v3", "--format", "list").out.split()[0] == "deepseek-v3"
    assert command("gpus", "h100", "sxm", "--format", "list").out.split() == ["h100-80gb-sxm"]


def test_the_command_for_details_can_be_pasted(command: Command) -> None:
    """A card's name with spaces is quoted."""
    answer = command("quick", "gpt2", "--gpu", "rtx 4090")
    assert "details: gpu-mem-calc quick gpt2 --gpu 'rtx 4090' --long" in answer.out
