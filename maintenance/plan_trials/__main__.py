"""Write the first choice for each question as a case of maintenance.capped_trials.

usage: python -m maintenance.plan_trials OUT

Megatron's set-ups are those of its local layers, which run without Transformer Engine.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gpu_mem_calculator.advice.planner.answers.question import PlanQuestion
from gpu_mem_calculator.advice.planner.training.trials import searched, try_best
from gpu_mem_calculator.runfile.text.errors import InputError

LOCAL = {
    "engine.transformer_implementation": "local",
    "engine.masked_softmax_fusion": False,
    "engine.gradient_accumulation_fusion": False,
    "engine.make_vocab_size_divisible_by": 128,
    "engine.deallocate_pipeline_outputs": True,
    "training.loss": "full",
}
TORCH_LOSS = {"training.loss": "full"}


def question(row: dict[str, Any]) -> PlanQuestion:
    """One row of questions.json as a question."""
    megatron = row["engines"] == ["megatron_lm"]
    return PlanQuestion(
        model={"name": row["model"]},
        hardware={"gpu": row["gpu"], "num_gpus": row["num_gpus"]},
        seq_len=row["seq_len"],
        global_batch=row["global_batch"],
        engines=tuple(row["engines"]),
        fix=LOCAL if megatron else TORCH_LOSS,
    )


def main(out: str) -> int:
    """Plan every question; one line each."""
    rows = json.loads((Path(__file__).parent / "questions.json").read_text(encoding="utf-8"))
    with Path(out).open("w", encoding="utf-8") as file:
        for number, row in enumerate(rows, 1):
            asked = question(row)
            try:
                trials = searched(asked)
                try_best(trials, wanted=1)
                plans = trials.plans()
            except InputError as error:
                print(number, row, error, flush=True)
                continue
            if not plans:
                print(number, row["model"], row["gpu"], "nothing fits", flush=True)
                continue
            engine = row["engines"][0]
            case = {"id": f"plan-{number}", "group": engine, "config": plans[0].run, "rank": 0}
            file.write(json.dumps(case) + "\n")
            file.flush()
            print(number, row["model"], plans[0].needs_bytes, plans[0].settings, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
