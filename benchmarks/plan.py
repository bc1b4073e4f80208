"""How many set-ups a second the planner's search judges, beside the same work one by one.

A set-up is judged when its validity, its memory and its time are known. In one run, on one core:

- the whole space of Llama 3 405B on 16,384 GPUs: set-ups, seconds, peak memory of the process;
- the same set-ups one after the other, by single ledgers and times: the reference of the ratio;
- other models and numbers of GPUs: the cost of a set-up depends on neither;
- calculon and llm-analysis, where their folders are given (`--calculon`, `--llm-analysis`).

python benchmarks/plan.py [--calculon FOLDER] [--llm-analysis FOLDER]
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from gpu_mem_calculator.advice.planner.answers.question import PlanQuestion
from gpu_mem_calculator.advice.planner.training.memory import highest_stage
from gpu_mem_calculator.advice.planner.training.search import at_sizes, search
from gpu_mem_calculator.advice.planner.training.space import structures
from gpu_mem_calculator.advice.planner.training.structures import Structure
from gpu_mem_calculator.estimates.machine import machine_of
from gpu_mem_calculator.ledger.units import gib
from gpu_mem_calculator.timing.training.step import step_seconds

SPACES = {
    # model, GPUs, global batch
    "Llama 3 405B on 16,384 GPUs": ("llama3.1-405b", 16384, 2048),
    "Llama 3 405B on 1,024 GPUs": ("llama3.1-405b", 1024, 2048),
    "Llama 3 70B on 1,024 GPUs": ("llama3.1-70b", 1024, 2048),
    "Llama 3 8B on 1,024 GPUs": ("llama3.1-8b", 1024, 2048),
}
SINGLES = 60  # set-ups that are judged one by one
AIM = 500_000  # set-ups a second


def question(model: str, gpus: int, batch: int) -> PlanQuestion:
    """The question of a space: every axis of Megatron-LM, the engine that takes arrays."""
    return PlanQuestion(
        model={"name": model},
        hardware={"gpu": "h100-80gb-sxm", "num_gpus": gpus},
        seq_len=8192,
        global_batch=batch,
        engines=("megatron_lm",),
    )


def judged(every: list[Structure]) -> int:
    """Set-ups of some structures, those that turn out to be invalid included."""
    return sum(len(one.pipes) * len(one.ranks) for one in every)


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """The result of a call, and its CPU seconds."""
    begin = time.process_time()
    return function(), time.process_time() - begin


def single_rate(every: list[Structure], batch: int) -> float:
    """Set-ups a second, judged one after the other."""
    random = np.random.default_rng(1)
    begin = time.process_time()
    for _ in range(SINGLES):
        structure = every[random.integers(len(every))]
        sizes = structure.sizes(
            int(random.integers(len(structure.pipes))), int(random.integers(len(structure.ranks)))
        )
        resolved = at_sizes(structure, sizes, batch)
        if resolved is not None:
            highest_stage(resolved)
            step_seconds(resolved.run, structure.engine, machine_of(resolved.hardware))
    return SINGLES / (time.process_time() - begin)


def calculon_rate(folder: Path) -> float:
    """Set-ups a second of calculon, on its own example."""
    sys.path.insert(0, str(folder))
    import logging

    from calculon import System  # type: ignore[import-not-found]
    from calculon.llm import Llm  # type: ignore[import-not-found]

    log = logging.getLogger("calculon")
    log.setLevel(logging.CRITICAL)
    example = json.loads((folder / "examples/3072_t4_p64_d12_mbs4_full.json").read_text())
    model = json.loads((folder / "models/megatron-1T.json").read_text())
    system = json.loads((folder / "systems/a100_80g.json").read_text())

    def one() -> None:
        llm = Llm(Llm.Application(model), log)
        llm.compile(System(system), Llm.Execution.from_json(example))
        llm.run(System(system))

    return rate(one, 20)


def llm_analysis_rate(folder: Path) -> float:
    """Set-ups a second of llm-analysis."""
    sys.path.insert(0, str(folder))
    import logging

    logging.disable(logging.CRITICAL)
    from llm_analysis.analysis import LLMAnalysis  # type: ignore[import-not-found]
    from llm_analysis.config import (  # type: ignore[import-not-found]
        ParallelismConfig,
        get_gpu_config_by_name,
        get_model_config_by_name,
    )

    model = get_model_config_by_name("decapoda-research_llama-65b-hf")
    gpu = get_gpu_config_by_name("a100-sxm-80gb")
    mesh = ParallelismConfig(tp_size=8, pp_size=8, dp_size=16)
    found = LLMAnalysis(model, gpu, parallelism_config=mesh)
    return rate(lambda: found.training(batch_size_per_gpu=1, seq_len=2048), 200)


def rate(one: Callable[[], Any], count: int) -> float:
    """Calls a second."""
    one()
    begin = time.process_time()
    for _ in range(count):
        one()
    return count / (time.process_time() - begin)


def rows() -> Iterator[str]:
    """A line for each space."""
    for name, (model, gpus, batch) in SPACES.items():
        every, setting_up = timed(lambda: list(structures(question(model, gpus, batch))))  # noqa: B023
        found, searching = timed(lambda: search(every, batch))  # noqa: B023
        seconds, count = setting_up + searching, judged(every)
        alone = single_rate(every, batch)
        yield (
            f"{name:29} {count:>9,} set-ups ({found.set_ups:,} valid, {found.feasible:,} fit) in "
            f"{seconds:.2f} s: {count / seconds:>9,.0f} a second (aim: {AIM:,}), "
            f"{count / seconds / alone:,.0f} x one by one ({alone:,.0f} a second)"
        )


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calculon", type=Path, help="its repository")
    parser.add_argument("--llm-analysis", type=Path, help="the folder that has its package")
    asked = parser.parse_args()
    for row in rows():
        print(row, flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"peak memory of the process: {gib(peak, 2)} GiB")
    for name, folder, measure in (
        ("calculon", asked.calculon, calculon_rate),
        ("llm-analysis", asked.llm_analysis, llm_analysis_rate),
    ):
        if folder is not None:
            print(f"{name}: {measure(folder):,.0f} a second")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
