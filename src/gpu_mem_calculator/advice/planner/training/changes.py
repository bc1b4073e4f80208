"""The smallest changes of a question with which a set-up would fit, where none does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from ....catalog.cards import find_card
from ....ledger.units import GIB
from ....run.run import DEFAULT_OPTIMIZER
from ....runfile.resolve.hardware import UNIFIED
from ....runfile.text.errors import InputError
from ....training.optimizers import OPTIMIZERS
from ..answers.plans import SmallestChange
from ..answers.question import PlanQuestion
from .search import Found, SetUp, search
from .space import structures

MOST_DOUBLINGS = 6


def smallest_changes(question: PlanQuestion, found: Found) -> list[SmallestChange]:
    """Changes with which a set-up fits by its ledger; each is the least of its kind that does."""
    if found.smallest is None:
        return []
    least, on_cards = found.smallest.total_bytes, found.on_cards
    changes = []
    for ladder in (_more_gpus(question), _shorter(question), _smaller_states(question)):
        for change, other in ladder:
            smaller = _smallest(other)
            if smaller is not None:
                saves = 0 if on_cards else least - smaller.total_bytes
                changes.append(SmallestChange(change=change, saves_bytes=saves))
                break
    card = find_card(question.hardware.get("gpu") or "")
    if on_cards and card is not None and card["kind"] == UNIFIED:
        return changes  # more of what card and host share would be another machine
    has = {"hardware.node_memory_gb": -(-found.least_node_bytes // GIB)}
    needed: dict[str, Any] = has if on_cards else {"hardware.gpu_memory_bytes": least}
    return [*changes, SmallestChange(change=needed, saves_bytes=0)]


def _smallest(question: PlanQuestion) -> SetUp | None:
    """The set-up that takes least; None where none fits on its cards and nodes."""
    try:
        found = search(list(structures(question)), question.sequences)
    except InputError:
        return None
    return found.smallest if found.feasible else None


Changed = Iterator[tuple[dict[str, Any], PlanQuestion]]


def _more_gpus(question: PlanQuestion) -> Changed:
    """Twice, four times ... as many GPUs, with a sequence for each of them at least."""
    count, batch = int(question.hardware["num_gpus"]), question.sequences
    for doubling in range(1, MOST_DOUBLINGS + 1):
        gpus = count << doubling
        hardware = {k: v for k, v in question.hardware.items() if k != "num_nodes"}
        yield (
            {"hardware.num_gpus": gpus},
            replace(
                question, hardware={**hardware, "num_gpus": gpus}, global_batch=max(batch, gpus)
            ),
        )


def _shorter(question: PlanQuestion) -> Changed:
    """Half, a quarter ... of the sequence."""
    seq = question.seq_len or 0
    for halving in range(1, MOST_DOUBLINGS + 1):
        if seq >> halving >= 256:
            shorter = seq >> halving
            yield {"training.seq_len": shorter}, replace(question, seq_len=shorter)


def _smaller_states(question: PlanQuestion) -> Changed:
    """8-bit states of the optimizer, else an adapter."""
    for change in (
        {"training.optimizer": OPTIMIZERS[DEFAULT_OPTIMIZER].narrow},
        {"training.lora": {"r": 16}, "training.precision": "bf16_pure"},
    ):
        yield change, replace(question, fix={**question.fix, **change})
