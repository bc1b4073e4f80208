"""Traces the public scripts of chosen.jsonl, byte for byte, and writes what each needs.

    python -m tests.lab.script.public MIRRORS FOLDER [ID ...]

MIRRORS has a git directory `OWNER+NAME/repo` for each repository, FOLDER gets the scripts and their
data. The answers go to scripts.jsonl, with the versions of the packages that ran.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shlex
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
GPU = "h200"
QWEN = "--model_name_or_path Qwen/Qwen2.5-0.5B"
OUT = "--output_dir out --report_to none"
TRL = f"--max_length 1024 --per_device_train_batch_size 4 --bf16 true {OUT}"
CLM = "--dataset_name wikitext --dataset_config_name wikitext-2-raw-v1 --block_size 1024"
PACKAGES = (
    *("torch", "transformers", "accelerate", "peft", "trl", "datasets", "lightning", "triton"),
    *("bitsandbytes", "liger-kernel", "tyro", "hydra-core", "tiktoken"),
)
FIGURES = ("allocated_bytes", "startup_bytes", "reserved_bytes", "needs_bytes", "device_bytes")


class Case(NamedTuple):
    """How a script is started.

    - `words`: the command, with FILE for the script
    - `files`: paths of the repository that it needs beside it
    - `data`: makes its data in the current folder
    """

    words: str
    files: tuple[str, ...] = ()
    shapes: str = ""
    data: Callable[[], None] = lambda: None


def _tokens(count: int) -> bytes:
    chosen = random.Random(0).choices(range(50000), k=count)
    return struct.pack(f"<{count}H", *chosen)


def _nanogpt_data() -> None:
    folder = Path("data/random")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "val"):
        (folder / f"{name}.bin").write_bytes(_tokens(200_000))


def _llm_c_data() -> None:
    header = struct.pack("<256i", 20240520, 1, 100_000, *[0] * 253)
    Path("random.bin").write_bytes(header + _tokens(100_000))


def _lightning_data() -> None:
    words, chosen = [f"w{number}" for number in range(33_000)], random.Random(0)
    lines = (" ".join(chosen.choices(words, k=20)) for _ in range(12_000))
    Path("data").mkdir(exist_ok=True)
    Path("data/wikitext-2.txt").write_text("\n".join(lines), encoding="utf-8")


CASES = {
    "trl-sft": Case(
        f"python FILE {QWEN} {TRL} --dataset_name trl-lib/Capybara", (), "seq_len=1024"
    ),
    "trl-dpo": Case(
        f"python FILE {QWEN} {TRL} --dataset_name trl-lib/ultrafeedback_binarized",
        (),
        "seq_len=1024 prompt_len=512",
    ),
    "trl-grpo": Case(
        f"python FILE {QWEN} --dataset_name trl-lib/math --reward_funcs think_format_reward "
        "--per_device_train_batch_size 8 --num_generations 8 --max_completion_length 32 "
        "--bf16 true --output_dir out --report_to none",
        (),
        "seq_len=256",
    ),
    "run-clm": Case(
        f"python FILE {QWEN} {CLM} --do_train --per_device_train_batch_size 4 --bf16 "
        "--dtype float32 --output_dir out --report_to none"
    ),
    "run-clm-no-trainer": Case(
        f"python FILE {QWEN} {CLM} --per_device_train_batch_size 4 --output_dir out",
        (),
        "dtype=bfloat16",
    ),
    "nanogpt": Case(
        "python FILE --dataset=random --compile=False --batch_size=12 --eval_iters=1 "
        "--gradient_accumulation_steps=2",
        ("model.py", "configurator.py"),
        data=_nanogpt_data,
    ),
    "llm-c": Case(
        "python FILE --input_bin random.bin --model d12 --batch_size 4 --sequence_length 1024 "
        "--total_batch_size 8192 --dtype bfloat16 --flash 1 --write_tensors 0",
        data=_llm_c_data,
    ),
    "lightning-transformer": Case("python FILE", data=_lightning_data),
    "torchtitan": Case(
        "torchrun --nproc-per-node=8 -m torchtitan.train --module llama3 --config "
        "llama3_debugmodel",
        ("torchtitan", "tests/assets/tokenizer"),
    ),
    "mingpt-ddp": Case(
        "torchrun --nproc-per-node=2 FILE data_config.path=data/input.txt",
        ("distributed/minGPT-ddp/mingpt",),
    ),
}


def chosen() -> Iterator[dict[str, Any]]:
    """The scripts: address, commit and hash."""
    for line in (HERE / "chosen.jsonl").read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def fetch(row: dict[str, Any], mirrors: Path, folder: Path) -> Path:
    """Write a script and the files that it needs to a folder; returns the script."""
    owner, name = row["repository"].split("/")[-2:]
    git = ["git", "-C", str(mirrors / f"{owner}+{name}" / "repo"), "archive", row["commit"]]
    files = (row["path"], *CASES[row["id"]].files)
    packed = subprocess.run([*git, *files], check=True, capture_output=True).stdout
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed, check=True)
    script = folder / row["path"]
    assert hashlib.sha256(script.read_bytes()).hexdigest() == row["sha256"], row["id"]
    return script


def trace(row: dict[str, Any], script: Path, root: Path) -> dict[str, Any]:
    """Trace a script in its own folder, or from its repository's root if it is a module."""
    case = CASES[row["id"]]
    folder = root if "-m " in case.words else script.parent
    os.chdir(folder)
    case.data()
    shapes = ["--shapes", *case.shapes.split()] if case.shapes else []
    words = shlex.split(case.words.replace("FILE", script.name))
    command = [sys.executable, "-m", "gpu_mem_calculator", "trace", "--gpu", GPU, *shapes]
    start = time.monotonic()
    done = subprocess.run(
        [*command, "--format", "json", "--", *words], capture_output=True, text=True, check=False
    )
    answer = json.loads(done.stdout)
    result: dict[str, Any] = {"id": row["id"], "command": shlex.join(words), "shapes": case.shapes}
    if done.returncode:
        return {**result, "refused": answer["error"]["problems"][0]}
    figures = {name: answer[name] for name in FIGURES}
    seconds = round(time.monotonic() - start)
    return {
        **result,
        **figures,
        "num_parameters": answer["num_parameters"],
        "notes": answer["notes"],
        "seconds": seconds,
    }


def versions() -> dict[str, str]:
    """Versions of the packages that are installed."""
    found = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def main(mirrors: str, folder: str, *ids: str) -> None:
    """Trace the scripts, or those that are named, and write their answers."""
    roots = (Path(mirrors).resolve(), Path(folder).resolve())
    for row in chosen():
        if not ids or row["id"] in ids:
            root = roots[1] / row["id"]
            result = trace(row, fetch(row, roots[0], root), root)
            save({**result, "versions": versions()})
            print(json.dumps(result), flush=True)


def save(result: dict[str, Any]) -> None:
    """Write one answer, in the order of the scripts."""
    file = HERE / "scripts.jsonl"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    done = {row["id"]: row for row in map(json.loads, text.splitlines())}
    done[result["id"]] = result
    rows = [done[row["id"]] for row in chosen() if row["id"] in done]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
