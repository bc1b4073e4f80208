"""The question of plans in words: the headline of an answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ...ledger.units import count
from ...tools.translation.arguments import tables
from .amounts import card

if TYPE_CHECKING:
    from ...advice.planner.answers.plans import Plans

# The first words where something else than the fastest set-up is looked for.
GOALS = tables(__file__)


def question_words(plans: Plans) -> str:
    """What was asked: the model, the GPUs, the sequence and the batch, or a server's targets."""
    asked = plans.question
    run = plans.plans[0].run if plans.plans else {}
    model = {**(asked.get("model") or {}), **(run.get("model") or {})}
    name = str(model.get("name") or "its own model")
    if asked.get("candidates"):
        name = f"{len(plans.plans)} candidates"
    hardware = run.get("hardware") or asked.get("hardware")
    found = card(hardware) if hardware else None
    where = f" on {found.num_gpus:,} × {found.title}" if found else ""
    said = _served_words(asked) if "users" in asked else _trained_words(asked, run)
    tokens = [f"{count(asked['tokens'])} tokens"] if asked.get("tokens") else []
    goal = GOALS.get(str(asked.get("goal")), "") if plans.plans else ""
    return goal + ", ".join([f"{name}{where}", *said, *tokens])


def _trained_words(asked: Mapping[str, Any], run: Mapping[str, Any]) -> Iterator[str]:
    """The sequence and the batch of a step; those of the first plan where they were left open."""
    if asked.get("candidates"):
        return
    training = run.get("training") or {}
    sequence = asked.get("seq_len") or training.get("seq_len")
    if sequence:
        own = " (--seq-len changes it)" if "seq_len" in (asked.get("assumed") or {}) else ""
        yield f"sequence {sequence:,}{own}"
    if asked.get("global_batch"):
        yield f"global batch {asked['global_batch']:,}"
    elif training:
        steps = training.get("gradient_accumulation_steps") or 1
        copies = (run.get("parallelism") or {}).get("data_parallel_size") or 1
        batch = (training.get("batch_size") or 1) * steps * copies
        yield f"global batch {batch:,} (--global-batch changes it)"


def _served_words(asked: Mapping[str, Any]) -> Iterator[str]:
    if asked.get("users"):
        yield f"{asked['users']:,} users"
    if asked.get("context"):
        yield f"context {asked['context']:,}"
    if asked.get("latency"):
        yield f"at most {1000 * asked['latency']:g} ms per output token"
    if asked.get("first_token"):
        yield f"at most {1000 * asked['first_token']:g} ms to the first token"
    if asked.get("throughput"):
        yield f"at least {asked['throughput']:,g} tokens/s"
