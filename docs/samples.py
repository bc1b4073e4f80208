"""Commands that documents show, and what they print."""

from __future__ import annotations

import io
import os
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from gpu_mem_calculator.cli.main import main as command

ROOT = Path(__file__).parents[1]
TRL = (
    "trl sft --model_name_or_path Qwen/Qwen2.5-7B --dataset_name trl-lib/Capybara --use_peft "
    "--load_in_4bit --dtype bfloat16 --per_device_train_batch_size 2 --max_length 4096"
)
# the README's five commands
README = {
    "command": f"check --gpu 4090 {TRL}",
    "train": "quick llama3.1-8b --qlora --gpu 4090",
    "serve": "infer llama3.1-8b --gpu h100 --context 16k",
    "plan": "plan llama3.2-1b --gpus 2 --gpu 4090 --seq-len 2k --global-batch 32 --engine "
    "fsdp,megatron --top 5",
    "check": "calculate configs/llama2_7b_deepspeed.json --check --quiet",
}
# those of docs/check.md
CHECK = {
    "vllm": "check --gpu h100-80gb-sxm vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2",
    "trl": "check --gpu 4090 trl sft --model_name_or_path Qwen/Qwen2.5-1.5B --dataset_name "
    "trl-lib/Capybara --bf16",
    "compare": "compare --gpu h100-80gb-sxm --at vllm=0.10.1 --at vllm=0.33.0 vllm serve "
    "openai/gpt-oss-120b",
}
# that of docs/diagnose.md
DIAGNOSE = {
    "oom": "diagnose configs/out_of_memory.txt -- python run_clm.py --model_name_or_path "
    "Qwen/Qwen2.5-1.5B --per_device_train_batch_size 4 --block_size 4096 --bf16 "
    "--gradient_checkpointing"
}
# those of docs/serving.md
SERVING = {
    "infer": "infer llama3.1-8b --gpu h100 --context 16k --users 16",
    "infer-large": "infer deepseek-v3 --gpu h200 --gpus 8 --context 32k",
}


@contextmanager
def folder() -> Iterator[str]:
    """A folder that has `configs/` and is removed afterwards."""
    with tempfile.TemporaryDirectory() as made:
        os.symlink(ROOT / "configs", Path(made) / "configs")
        yield made


def printed(words: str) -> tuple[str, int]:
    """What a command prints and its exit code; files that it writes are removed."""
    out = io.StringIO()
    with folder() as here, chdir(here), redirect_stdout(out), redirect_stderr(out):
        code = command(shlex.split(words))
    return out.getvalue().rstrip(), code


def sample(words: str) -> str:
    """A command and its answer as a block, with the exit code where it is not 0."""
    out, code = printed(words)
    lines = [f"$ gpu-mem-calc {words}", *out.splitlines()]
    if code:
        lines += ["$ echo $?", str(code)]
    return "\n".join(["```console", *lines, "```"])


def readme() -> dict[str, str]:
    """What stands between the marks of the README."""
    return {mark: sample(words) for mark, words in README.items()}


def serving() -> dict[str, str]:
    """What stands between the marks of docs/serving.md."""
    return {mark: sample(words) for mark, words in SERVING.items()}


def check() -> dict[str, str]:
    """What stands between the marks of docs/check.md."""
    return {mark: sample(words) for mark, words in CHECK.items()}


def diagnose() -> dict[str, str]:
    """What stands between the marks of docs/diagnose.md."""
    return {mark: sample(words) for mark, words in DIAGNOSE.items()}
