"""Plans as text: one screen, the best one first, every figure where people look for it."""

from __future__ import annotations

import re

from msgspec.structs import replace

from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.report.lines import plain
from gpu_mem_calculator.report.plan.amounts import duration_text
from gpu_mem_calculator.report.plan.text import plan_lines
from gpu_mem_calculator.report.plan.words import (
    change_words,
    question_words,
    setup_words,
    short_setups,
)

from .plans_fixture import no_plan_fits, some_plans


def shown(width: int = 80) -> list[str]:
    """The lines of the five plans."""
    return plain(plan_lines(some_plans(), [["calculate", "plan-1.json"]], width)).splitlines()


def test_the_best_plan_is_first() -> None:
    """Question, set-up, memory, time and cost are above the table."""
    text = "\n".join(shown()).partition("#  set-up")[0]
    asked = "llama3.1-70b on 64 × NVIDIA H100 80GB SXM5, sequence 8,192, global batch 1,024"
    assert text.startswith(asked)
    assert "Megatron-LM  TP 4  PP 2  DP 8  micro-batch 2 × 64  no recompute" in text
    assert "fits, 7.7 GiB to spare" in text
    assert "step 9.30 (8.56–10.2) s   902 K tokens/s   MFU 48.4 %   12.8 days" in text
    assert "█ compute 8.10   ▓ communication 1.20" in text
    assert "why: It recomputes nothing" in text


def test_it_fits_one_screen() -> None:
    """Also a narrow one, and ten plans."""
    for width in (60, 80):
        assert max(map(len, shown(width))) <= width
    found = some_plans()
    many = replace(found, plans=[replace(p, rank=i + 1) for i, p in enumerate(found.plans * 3)])
    assert len(plan_lines(many, [["calculate", "plan-1.json"]])) <= 48


def test_the_bar_has_the_shares_of_the_parts() -> None:
    """8.1 of 9.3 seconds are 70 of 80 characters."""
    bar = next(line for line in shown() if "▓▓" in line)
    assert (bar.count("█"), bar.count("▓")) == (70, 10)


def test_a_row_names_what_differs() -> None:
    """Short words, the memory of the card, the interval, speed and cost."""
    row = next(line for line in shown() if line.startswith("5  "))
    assert re.sub(r" +", " ", row) == (
        "5 ZeRO-3 1×16 none offload 30.3 17.5 (16.1–19.2) 479 K 25.7 92.7 K"
    )


def test_the_front_has_the_ranks_at_their_places() -> None:
    """Plan 5 takes least memory and most time, plan 1 the reverse; plan 4 is not on the front."""
    lines = [line for line in shown() if "│" in line]
    assert lines[0].split("│")[1].strip() == "5"
    assert lines[-1].endswith("1")
    assert sum(line.count("·") for line in lines) == 1


def test_without_a_cost_there_is_no_column_for_it() -> None:
    """And no GPU-hours."""
    found = some_plans()
    bare = replace(found, plans=[replace(p, cost=None, gpu_hours=None) for p in found.plans])
    text = plain(plan_lines(bare, []))
    assert "cost" not in text
    assert "GPU-hours" not in text


def test_a_knob_says_what_it_costs_and_saves() -> None:
    """With its share of the step, and whether it still fits."""
    lines = [" ".join(line.split()) for line in shown()]
    assert "full recompute -20.0 GiB +1.900 s (+20 %)" in lines
    assert "TP 2 +14.0 GiB -0.400 s (-4 %) does not fit" in lines


def test_where_nothing_fits_the_smallest_changes_are_shown() -> None:
    """The verdict is in the second block."""
    text = plain(plan_lines(no_plan_fits(), []))
    assert "does not fit, 10.4 GiB short" in text
    assert "no set-up fits\nit would fit with 128 GPUs (saves 12.0 GiB per GPU)" in text
    assert "it would fit with optimizer on the CPU (saves 15.0 GiB per GPU)" in text


def test_no_plan_at_all_is_a_sentence() -> None:
    """An empty list of plans is shown, too."""
    empty = replace(no_plan_fits(), plans=[])
    assert "no set-up fits" in plain(plan_lines(empty, []))


def test_words_of_other_settings() -> None:
    """FSDP's strategy, chunks, offload, and any other key as it is."""
    plan = some_plans().plans[2]
    run = {
        **plan.run,
        "engine": {"type": "fsdp", "fsdp_version": 1, "sharding_strategy": "hybrid_shard"},
        "parallelism": {"virtual_pipeline_size": 2, "sequence_parallel": True},
        "training": {"loss": "liger_fused", "recompute": "every_2nd_layer"},
    }
    words = setup_words(replace(plan, run=run, settings={"engine.overlap_comm": True}))
    assert words == [
        "FSDP1 hybrid shard",
        "interleaved in 2 chunks",
        "SP",
        "micro-batch 1 × 1",
        "every 2nd layer recompute",
        "Liger's fused loss",
        "overlap comm",
    ]


def test_words_of_a_frameworks_own_recompute() -> None:
    """Megatron's keys: how many layers are recomputed."""
    own = {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 3}
    first, second, *_ = some_plans().plans
    run = {**first.run, "training": {**first.run["training"], "recompute": own}}
    block = replace(first, run=run)
    assert "full recompute of 3 layers" in setup_words(block)
    assert short_setups([block, second])[0] == "Megatron PP2 2×64 full:3"


def test_words_of_changes() -> None:
    """Known keys in words, others as `key=value`."""
    change = {"training.batch_size": 2, "engine.zero_stage": 3, "engine.overlap_comm": False}
    assert change_words(change) == "micro-batch 2, ZeRO-3, overlap_comm=false"


def test_durations_have_the_unit_that_people_use() -> None:
    """At least two of a unit."""
    assert [duration_text(s) for s in (90, 7000, 90_000, 10**6)] == [
        "90 seconds",
        "116.7 minutes",
        "25.0 hours",
        "11.6 days",
    ]


def test_the_needs_of_a_plan_are_those_of_the_card() -> None:
    """Needs, margin and what is outside torch, as in every other command."""
    from gpu_mem_calculator.report.plan.amounts import card, card_bytes

    plan = some_plans().plans[0]
    has = card(plan.run["hardware"]).memory_bytes
    assert has - card_bytes(plan) == plan.headroom_bytes
    assert 70 * GIB < card_bytes(plan) < 73 * GIB


def test_the_headline_says_what_was_looked_for() -> None:
    """And which sequence was assumed."""
    found = some_plans()
    asked = {**found.question, "goal": "fewest_gpus", "assumed": {"seq_len": 8192}}
    words = question_words(replace(found, question=asked))
    assert words.startswith("the fewest GPUs: llama3.1-70b on 64 × NVIDIA H100")
    assert "sequence 8,192 (--seq-len changes it), global batch 1,024" in words
    open_batch = {**asked, "global_batch": None}
    words = question_words(replace(found, question=open_batch))
    assert "global batch 1,024 (--global-batch changes it)" in words
    assert question_words(replace(found, question={"candidates": 5})).startswith("5 candidates on")


def test_the_headline_of_a_server_has_its_targets() -> None:
    """Users, context, and what is promised to each."""
    asked = {"model": {"name": "gpt2"}, "users": 4, "context": 1024, "latency": 0.05}
    empty = replace(no_plan_fits(), plans=[], question={**asked, "throughput": 2000.0})
    assert question_words(empty) == (
        "gpt2, 4 users, context 1,024, at most 50 ms per output token, at least 2,000 tokens/s"
    )
