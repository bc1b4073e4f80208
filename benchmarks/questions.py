"""The standard questions, and how many times the CPU time of `python -c pass` each may take."""

from __future__ import annotations

import os
from pathlib import Path

TYPE_CHECKING = False  # what measures stays small: a process begins with its parent's peak
if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[1]
MOST_MIB = 300  # the peak memory of each
IN_C, IN_PYTHON = "c", "python"  # the replays, by what `GPU_MEM_CALC_REPLAY` calls them
REPLAYS = (IN_C, IN_PYTHON)


class Question:
    """A command, its aims with the replay in C and in Python, and whether it is counted.

    Counted are those whose instructions `benchmarks/instructions.json` keeps.
    """

    def __init__(self, words: str, in_c: int, in_python: int, *, counted: bool = True) -> None:
        self.words = words
        self.aims = {IN_C: in_c, IN_PYTHON: in_python}
        self.counted = counted


CHECKED = (  # the README's first command
    "check --gpu 4090 trl sft --model_name_or_path Qwen/Qwen2.5-7B --dataset_name "
    "trl-lib/Capybara --use_peft --load_in_4bit --dtype bfloat16 "
    "--per_device_train_batch_size 2 --max_length 4096"
)
QUESTIONS = (
    Question("--version", 2, 2, counted=False),
    Question("presets llama", 3, 3),
    Question("gpus h200", 3, 3, counted=False),
    Question("validate configs/llama2_7b_deepspeed.json", 6, 6),
    Question("infer llama3.1-8b --gpu h100", 8, 8),
    Question("quick 7", 10, 20),
    Question("quick 7 --gpus 8 --engine deepspeed", 10, 20),
    Question("quick llama3.1-8b --qlora --gpu 4090", 14, 40),
    Question("quick 70 --gpus 64 --engine fsdp", 15, 45),
    Question("calculate --config configs/llama2_7b_deepspeed.json", 15, 45),
    Question(CHECKED, 12, 18),
    Question("quick qwen2.5-72b --lora 16 --gpus 16 --zero 3 --gpu a100-80gb-sxm", 20, 60),
    Question("plan llama3.1-8b --gpus 8 --gpu h100 --global-batch 64", 120, 400, counted=False),
    Question(
        "plan llama3.1-405b --gpus 16384 --gpu h100-80gb-sxm --seq-len 8k --global-batch 2048",
        *(300, 1_200),
        counted=False,
    ),
    Question(
        "plan llama3.1-8b --gpu a100-80gb-sxm --fewest-gpus --global-batch 64 --seq-len 4k",
        *(200, 800),
        counted=False,
    ),
)


def environment(replay: str) -> Mapping[str, str]:
    """The variables of a process: as installed, with compiled modules and one of the replays.

    Nothing else of this shell's, and hashes that are the same in each process: a run counts as
    many instructions as the last one did.
    """
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    more = {"LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1"}
    return {**kept, **more, "GPU_MEM_CALC_REPLAY": replay}
