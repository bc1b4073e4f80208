"""How fast it is, as ratios to a reference measured in the same run.

- a cold command as a multiple of starting bare Python (`python -c pass`), both in CPU time of the
  process (user and system), which a busy machine changes little; the median of alternating rounds;
- the same for other calculators, where they are installed (`--others FOLDER` names their bin/);
- estimates a second in one process, by the ledger alone and with the allocator replayed;
- peak memory of a cold `quick`.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
ROUNDS = 7
VERSION, FITTING, VALIDATE, ANY = 3, 12, 8, 40  # aims, as multiples of bare Python
QUICK = "quick 7 --gpus 8 --engine deepspeed"
COMMANDS: tuple[tuple[str, int], ...] = (
    ("--version", VERSION),
    ("validate configs/pytorch_ddp_example.json", VALIDATE),
    ("validate configs/llama2_7b_deepspeed.json", VALIDATE),
    ("validate configs/gpt3_175b_megatron.json", VALIDATE),
    ("quick 350M", FITTING),
    (QUICK, FITTING),
    ("quick 7 --gpus 8 --engine fsdp", FITTING),
    ("quick 7 --gpus 8 --engine megatron", FITTING),
    ("infer llama3.1-8b --gpu h100-80gb-sxm", ANY),
    ("infer llama3.1-70b --gpu h100-80gb-sxm", ANY),
    ("infer llama3.1-8b --engine transformers --gpu h100-80gb-sxm", ANY),
    ("quick 7", ANY),
    ("quick 70 --engine fsdp --gpus 64", ANY),
    ("quick 70", ANY),
    ("calculate --config configs/llama2_7b_deepspeed.json", ANY),
    ("calculate --config configs/pytorch_ddp_example.json", ANY),
)
OTHERS: dict[str, tuple[str, ...]] = {
    "hf-mem": ("hf-mem", "--model-id", "meta-llama/Llama-2-7b-hf"),
    "llm-analysis": (
        *("python", "-m", "llm_analysis.analysis", "train"),
        *("--model_name=NousResearch_Llama-2-7b-hf", "--gpu_name=a100-sxm-80gb"),
        *("--batch_size_per_gpu=1", "--seq_len=4096", "--dp_size=8", "--ds_zero=2"),
    ),
}
# as installed: with compiled modules, whatever this shell says about writing them
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def cpu_seconds(command: list[str]) -> tuple[float, str]:
    """CPU time of one process with its output piped; the last line of its error where it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, (run.stderr.strip() or "no message").splitlines()[-1] * bool(run.returncode)


def ratio(command: list[str], rounds: int) -> tuple[float, str]:
    """How many times bare Python's CPU time a command takes, in the median; and why it fails."""
    _, failure = cpu_seconds(command)  # the first run compiles modules
    ratios = []
    for _ in range(rounds):
        bare, _ = cpu_seconds([sys.executable, "-c", "pass"])
        ratios.append(cpu_seconds(command)[0] / bare)
    return median(ratios), failure


def compare_commands(rounds: int) -> None:
    """Print a line for each command, and its aim."""
    print("x bare Python's start, CPU time")
    for words, aim in COMMANDS:
        times, failure = ratio([str(BIN / "gpu-mem-calc"), *words.split()], rounds)
        missed = "  MISSED" * (times > aim)
        print(f"{times:7.1f}  (aim: {aim:2})  {words}{failure and f': {failure}'}{missed}")


def compare_others(folder: Path, rounds: int) -> None:
    """Print a line for each other calculator: its ratio, or why it has none."""
    for name, (program, *words) in OTHERS.items():
        path = folder / program
        module = [str(path), "-c", f"import {name.replace('-', '_')}"]
        absent = not path.exists() or (program == "python" and cpu_seconds(module)[1])
        if absent:
            print(f"      -              {name} is not installed in {folder}")
            continue
        times, failure = ratio([str(path), *words], rounds)
        why = f": it fails, and the time is that up to its error ({failure})" if failure else ""
        print(f"{times:7.1f}              {name}{why}")


def estimates_per_second(engine: str, count: int, *, replay: bool) -> float:
    """Estimates of one model at changing batch sizes."""
    from gpu_mem_calculator import estimate

    run: dict[str, dict[str, object]] = {
        "model": {"name": "llama2-7b"},
        "training": {"batch_size": 1, "seq_len": 4096},
        "engine": {"type": engine},
        "hardware": {"gpu": "h100-80gb-sxm", "num_gpus": 8},
    }
    estimate(run, replay=replay)
    start = time.perf_counter()
    for i in range(count):
        run["training"]["batch_size"] = 1 + i % 7
        estimate(run, replay=replay)
    return count / (time.perf_counter() - start)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--others", type=Path, default=BIN, help="the bin/ of other calculators")
    asked = parser.parse_args()
    cpu_seconds([str(BIN / "gpu-mem-calc"), *QUICK.split()])
    child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"peak memory of {QUICK}: {child:.1f} MiB (aim: under 60)")
    compare_commands(asked.rounds)
    compare_others(asked.others, asked.rounds)
    for engine in ("pytorch_ddp", "fsdp", "deepspeed", "megatron_lm"):
        ledger = estimates_per_second(engine, 300, replay=False)
        whole = estimates_per_second(engine, 7, replay=True)
        print(f"ledgers a second      {ledger:6.0f} {engine:12}   (aim: 1,000)")
        print(f"replayed a second     {whole:6.1f} {engine}")


if __name__ == "__main__":
    main()
