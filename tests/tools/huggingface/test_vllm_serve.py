"""`trl vllm-serve` is vLLM's class with TRL's options; TRL's scripts are its subcommands."""

from __future__ import annotations

import shlex

import pytest

from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.launchers.launch import read_launch
from gpu_mem_calculator.tools.reading.named_files import NamedFiles
from gpu_mem_calculator.tools.reading.reading import Reading
from gpu_mem_calculator.tools.reading.tools import read_command

SERVE = "--model Qwen/Qwen2.5-7B-Instruct --tensor_parallel_size 2 --max-model-len 4608"
SFT = "--model_name_or_path Qwen/Qwen2.5-0.5B --packing true --max_length 512"


def _read(line: str) -> Reading:
    return read_command(read_launch(shlex.split(line), NamedFiles(None)))


@pytest.mark.parametrize("start", ["trl vllm-serve", "python -m trl.scripts.vllm_serve"])
def test_the_server_has_vllms_keys(start: str) -> None:
    """With the tokens of a step that vLLM's class takes, and TRL's share of the card."""
    reading = _read(f"{start} {SERVE} --enable_prefix_caching true --enforce_eager")
    assert reading.problems == []
    expected = {
        "engine": "vllm",
        "tensor_parallel_size": 2,
        "max_seq_len": 4608,
        "gpu_memory_utilization": 0.9,
        "max_num_batched_tokens": 8192,
        "enable_prefix_caching": True,
        "enforce_eager": True,
    }
    assert expected.items() <= reading.run["inference"].items()
    assert reading.run["hardware"] == {"num_gpus": 2}
    assert "--gpu-memory-utilization" not in reading.keys


def test_an_option_that_it_does_not_have_is_refused() -> None:
    """vLLM has it, and TRL does not."""
    reading = _read(f"trl vllm-serve {SERVE} --max_num_seqs 9")
    assert reading.problems == ["--max_num_seqs is not an option of trl vllm-serve; leave it out"]


@pytest.mark.parametrize(
    "start", ["trl sft", "python -m trl sft", "python3 -m trl.scripts.sft", "python -m trl.cli sft"]
)
def test_a_script_of_trl_is_its_subcommand(start: str) -> None:
    """The same program, however it is started."""
    assert _read(f"{start} {SFT}").run == _read(f"trl sft {SFT}").run


def test_a_launcher_in_front_of_a_script_says_the_processes() -> None:
    """`accelerate launch -m trl.scripts.dpo`."""
    reading = _read(f"accelerate launch --num_processes 4 -m trl.scripts.dpo {SFT[:40]}")
    assert reading.run["program"]["tool"] == "trl.DPOTrainer"
    assert reading.run["hardware"]["num_gpus"] == 4


def test_another_script_is_refused_with_those_that_are_read() -> None:
    """`trl.scripts.env` trains nothing."""
    with pytest.raises(InputError, match=r"trl env is not read.*vllm-serve"):
        _read("python -m trl.scripts.env")
