"""A value of the wrong type is one sentence, for every argument that changes memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.llamafactory import read as llamafactory
from gpu_mem_calculator.tools.llamafactory.read import WITH_MEGATRON
from gpu_mem_calculator.tools.llamafactory.second_version import TABLE as SECOND_VERSION
from gpu_mem_calculator.tools.reading.named_files import NamedFiles
from gpu_mem_calculator.tools.reading.option_values import json_object
from gpu_mem_calculator.tools.reading.options import OptionSyntax, parse_options
from gpu_mem_calculator.tools.reading.reading import Reading
from gpu_mem_calculator.tools.swift import read as swift
from gpu_mem_calculator.tools.translation.arguments import MEMORY, Argument, ArgumentTable

ODD: tuple[Any, ...] = (
    *(None, -1, 0, 1.5, 10**30, float("nan"), True),
    *("", "x", [], [1], {}, {"a": 1}),
)
NAME = "qwen2.5-0.5b"
LORA = {"model_name_or_path": NAME, "stage": "sft", "do_train": True, "quantization_bit": 4}
FULL = {**LORA, "quantization_bit": None, "finetuning_type": "full", "sequence_parallel": False}
SECOND = {"model": NAME, "train_dataset": "x", "dist_config": {"name": "fsdp2"}}
SFT = {"model": NAME, "dataset": ["a"], "tuner_type": "lora", "max_length": 64}
GRPO = {**SFT, "rlhf_type": "grpo", "use_vllm": True}
MEGATRON = {**SFT, "tuner_type": "full", "micro_batch_size": 1}
Read = Callable[[Mapping[str, Any], NamedFiles], Reading]


@pytest.mark.parametrize(
    ("read", "table", "base"),
    [
        pytest.param(llamafactory.read_data, WITH_MEGATRON, LORA, id="llamafactory"),
        pytest.param(llamafactory.read_data, WITH_MEGATRON, FULL, id="llamafactory-megatron"),
        pytest.param(llamafactory.read_data, SECOND_VERSION, SECOND, id="llamafactory-second"),
        pytest.param(swift.read_data, swift.SWIFT, SFT, id="swift"),
        pytest.param(swift.read_data, swift.SWIFT, GRPO, id="swift-grpo"),
        pytest.param(swift.read_data, swift.MEGATRON, MEGATRON, id="swift-megatron"),
    ],
)
def test_an_odd_value_is_a_sentence(read: Read, table: ArgumentTable, base: dict[str, Any]) -> None:
    """It is read, or it is a problem, or one error of the user."""
    for name in (name for name, row in table.items() if row.effect == MEMORY):
        section, _, key = name.partition(".")
        for value in ODD:
            inner = {**base.get(section, {"name": "x"}), key: value} if key else value
            try:
                reading = read({**base, section: inner}, NamedFiles(None))
            except InputError as error:
                assert "\n" not in str(error)
            else:
                assert reading.run or reading.problems


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["--enforce-eager", "False"], {"enforce_eager": False}),
        (["--enforce-eager", "true", "--seed", "True"], {"enforce_eager": True, "seed": True}),
        (["--enforce-eager", "--seed", "3"], {"enforce_eager": True, "seed": 3}),
    ],
)
def test_a_flag_may_have_the_value_of_an_earlier_release(
    words: list[str], values: dict[str, Any]
) -> None:
    """`--enable-chunked-prefill False` of vLLM 0.6 named a model False."""
    table = {name: Argument(default=None, effect="memory") for name in ("enforce_eager", "seed")}
    parsed = parse_options("x", words, table, OptionSyntax(flags=frozenset({"enforce_eager"})))
    assert (parsed.values, parsed.positional) == (values, [])


def test_counts_of_inputs_may_be_pairs() -> None:
    """vLLM took image=1,video=0 until 0.9; another text is refused."""
    assert json_object("x", "image=1,video=0") == {"image": 1, "video": 0}
    with pytest.raises(InputError, match="must be a JSON object"):
        json_object("x", "image=one")


def test_a_file_that_the_script_does_not_say_is_a_limit() -> None:
    """The run is read without it."""
    data = {**LORA, "quantization_bit": None, "deepspeed": "$DS_CONFIG_PATH"}
    found = llamafactory.read_data(data, NamedFiles(None))
    assert any(one.key == "deepspeed=$DS_CONFIG_PATH" for one in found.limits)
