"""Plans made by hand, so that what shows them can be tested without a search."""

from __future__ import annotations

from typing import Any

from gpu_mem_calculator.advice.planner.answers.plans import (
    KnobEffect,
    Plan,
    Plans,
    PlanSeconds,
    PlanStage,
    SearchedSpace,
    SmallestChange,
)
from gpu_mem_calculator.ledger.units import GIB

HARDWARE = {"gpu": "h100-80gb-sxm", "num_gpus": 64}
CARD = 79.11  # GiB, nearly
# engine, tp, pp, micro-batch, recompute; GiB of the card; seconds by part
ROWS: tuple[tuple[str, int, int, int, str, float, dict[str, float]], ...] = (
    ("megatron_lm", 4, 2, 2, "none", 71.4, {"compute": 8.1, "exposed_communication": 1.2}),
    ("megatron_lm", 4, 4, 1, "selective", 48.9, {"compute": 8.9, "bubble": 1.4}),
    ("fsdp", 1, 1, 1, "full", 39.5, {"compute": 10.2, "exposed_communication": 2.1}),
    ("deepspeed", 1, 1, 1, "full", 41.0, {"compute": 10.2, "exposed_communication": 2.4}),
    ("deepspeed", 1, 1, 1, "none", 30.2, {"compute": 8.1, "offload": 9.0, "optimizer": 0.4}),
)


def run_file(engine: str, tp: int, pp: int, micro_batch: int, recompute: str) -> dict[str, Any]:
    """A run file of one row."""
    dp = 64 // (tp * pp)
    keys: dict[str, Any] = {"type": engine}
    if engine == "deepspeed":
        keys |= {"zero_stage": 3, "offload_optimizer": "cpu" if recompute == "none" else "none"}
    return {
        "model": {"name": "llama3.1-70b"},
        "training": {
            "batch_size": micro_batch,
            "gradient_accumulation_steps": 1024 // (dp * micro_batch),
            "seq_len": 8192,
            "activation_checkpointing": recompute,
        },
        "parallelism": {
            "tensor_parallel_size": tp,
            "pipeline_parallel_size": pp,
            "data_parallel_size": dp,
        },
        "engine": keys,
        "hardware": HARDWARE,
    }


def one_plan(rank: int, row: tuple[Any, ...], *, short: float = 0) -> Plan:
    """A plan of one row; `short` GiB are added to what it needs."""
    *setting, needs, parts = row
    needs += short
    step = sum(parts.values())
    run = run_file(*setting)
    return Plan(
        rank=rank,
        run=run,
        settings={"training.activation_checkpointing": setting[-1], "engine.type": setting[0]},
        needs_bytes=int((needs - 2) * GIB),
        allocated_bytes=int((needs - 5) * GIB),
        margin_bytes=GIB,
        headroom_bytes=int((CARD - needs) * GIB),
        fits_on_gpu=needs <= CARD,
        step_seconds=PlanSeconds(estimate=step, low=0.92 * step, high=1.1 * step, parts=parts),
        tokens_per_second=1024 * 8192 / step,
        mfu=4.5 / step,
        gpu_hours=1e12 * step * 64 / (1024 * 8192 * 3600),
        cost=2.5e12 * step * 64 / (1024 * 8192 * 3600),
        why=["It recomputes nothing and still fits."] if rank == 1 else [],
        stages=[
            PlanStage(stage=i, layers=80 // setting[2], allocated_bytes=int((needs - 5 - i) * GIB))
            for i in range(setting[2])
        ],
        knobs=[
            KnobEffect(
                change={"training.activation_checkpointing": "full"},
                needs_bytes=-20 * GIB,
                step_seconds=1.9,
                fits_on_gpu=True,
            ),
            KnobEffect(
                change={"parallelism.tensor_parallel_size": 2},
                needs_bytes=14 * GIB,
                step_seconds=-0.4,
                fits_on_gpu=False,
            ),
        ],
    )


def some_plans() -> Plans:
    """Five plans, of which four are on the front."""
    return Plans(
        question={
            "model": {"name": "llama3.1-70b"},
            "hardware": HARDWARE,
            "seq_len": 8192,
            "global_batch": 1024,
            "goal": "fastest",
            "price": 2.5,
            "tokens": 10**12,
            "top": 10,
        },
        space=SearchedSpace(set_ups=123456, feasible=7890, seconds=0.4),
        plans=[one_plan(rank, row) for rank, row in enumerate(ROWS, 1)],
        front=[0, 1, 2, 4],
    )


def no_plan_fits() -> Plans:
    """The nearest set-up, which does not fit, and what would let it fit."""
    found = some_plans()
    return Plans(
        question=found.question,
        space=SearchedSpace(set_ups=123456, feasible=0, seconds=0.4),
        plans=[one_plan(1, ROWS[2], short=50)],
        front=[],
        if_nothing_fits=[
            SmallestChange(change={"hardware.num_gpus": 128}, saves_bytes=12 * GIB),
            SmallestChange(change={"engine.offload_optimizer": "cpu"}, saves_bytes=15 * GIB),
        ],
    )
