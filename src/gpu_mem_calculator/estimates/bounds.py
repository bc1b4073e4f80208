"""The verdict with what is not modelled: it holds only where the bounds cannot turn it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import UNSET

from ..ledger.ledger import ACT, GRAD, OPTIM, PARAM
from ..models.arch.blocks import Moe
from ..run.limits import Bound, BoundedLimit, Limit
from ..run.phases import STARTUP
from ..runfile.text.errors import InputError
from .fit_verdict import FITS, SHORT, UNSURE

if TYPE_CHECKING:
    from ..run.run import Run
    from .result import MemoryResult

PARTS = {"parameters": PARAM, "gradients": GRAD, "optimizer_states": OPTIM, "activations": ACT}
"""Parts of the estimate, in bytes. What touches a part alone saves at most what the peak has of it:
the peak's instant has the rest in any case. What multiplies a part adds at most what the instant
with most of it has, since the peak may move there."""
TOKENS = "tokens"
"""What grows with the tokens of a batch: all but the model states of the instant with most of
them, and what is outside torch. With any batch and length the run takes these."""
STATES = (PARAM, GRAD, OPTIM)
COUNTS = ("weights", "card_percent", "logits", "hidden", "router", "router_choices")
"""Elements of the whole model, bytes of a hundredth of the card, elements of one micro-batch's
logits, of its hidden states after one layer, of the scores of all its routers, and of a score for
each expert that they choose."""
TERM = r"(?:(\d+)\*)?(\w+)"


def bound_bytes(bound: Bound, result: MemoryResult, run: Run | None, *, adds: bool) -> int | None:
    """The bytes of a bound: as given, or a sum such as `activations` or `4*logits+1*weights` of
    parts of the estimate, and of elements with the bytes of each.
    """
    if bound is None or isinstance(bound, int):
        return bound
    total = 0
    for term in bound.split("+"):
        match = re.fullmatch(TERM, term.strip())
        if match is None or match[2] not in (*PARTS, TOKENS, *COUNTS):
            known = ", ".join((*PARTS, TOKENS, *COUNTS))
            raise InputError(f"{term!r} is not a bound; it can be a number times one of {known}")
        size = (
            _part_bytes(match[2], result, adds=adds)
            if match[2] in (*PARTS, TOKENS)
            else _elements(match[2], result, run)
        )
        if size is None:
            return None
        total += int(match[1] or 1) * size
    return total


def state_bytes(result: MemoryResult) -> int:
    """What a step takes of a card with any batch and length: model states, and what is outside
    torch.
    """
    steps = (one["bytes"] for one in result.timeline if one["phase"] != STARTUP)
    states = (sum(sizes.get(kind, 0) for kind in STATES) for sizes in steps)
    return int(max(states, default=0)) + result.outside_torch_bytes


def _part_bytes(name: str, result: MemoryResult, *, adds: bool) -> int:
    if name == TOKENS:
        return max(result.gpu_memory_bytes - result.headroom_bytes - state_bytes(result), 0)
    kind = PARTS[name]
    if adds:
        return max((one["bytes"].get(kind, 0) for one in result.timeline), default=0)
    at_peak = next(one for one in result.timeline if one["title"] == result.peak_instant)
    return int(at_peak["bytes"].get(kind, 0))


def _elements(name: str, result: MemoryResult, run: Run | None) -> int | None:
    if name == "weights":
        return result.num_parameters
    if name == "card_percent":
        return -(-result.gpu_memory_bytes // 100)
    if run is None:
        return None
    tokens = int(run.batch * run.seq)
    layers = [(layer.mlp, count) for layer, _, count in run.arch.runs]
    routed = [(mlp, count) for mlp, count in layers if isinstance(mlp, Moe)]
    widths = {
        "logits": run.arch.vocab,
        "hidden": run.arch.hidden,
        "router": sum(mlp.num_experts * count for mlp, count in routed),
        "router_choices": sum(mlp.num_experts * mlp.top_k * count for mlp, count in routed),
    }
    return tokens * widths[name]


def bounded(limit: Limit, result: MemoryResult, run: Run | None = None) -> BoundedLimit:
    """A limit with its bounds in bytes; without a run those that need its shape are open."""
    adds = bound_bytes(limit.adds, result, run, adds=True)
    saves = bound_bytes(limit.saves, result, run, adds=False)
    return BoundedLimit(
        key=limit.key,
        why=limit.why,
        adds_bytes=0 if limit.could == "less" else adds,
        saves_bytes=0 if limit.could == "more" else saves,
        saves_part=limit.saves if limit.saves in (*PARTS, TOKENS) else UNSET,
        settle=limit.settle,
    )


def bounded_verdict(word: str, headroom: int, limits: Sequence[BoundedLimit]) -> str:
    """The verdict of the figures, `cannot_tell` where all limits together could turn it."""
    if word == FITS:
        return FITS if _within((one.adds_bytes for one in limits), headroom) else UNSURE
    if word == SHORT:
        parts = {one.saves_part: one.saves_bytes for one in limits if one.saves_part}
        others = [one.saves_bytes for one in limits if not one.saves_part]
        return SHORT if _within((*parts.values(), *others), -headroom - 1) else UNSURE
    return UNSURE


def deciding(result: MemoryResult) -> list[BoundedLimit]:
    """The limits that keep the verdict open: those in the direction that would turn it, the
    unbounded ones first.
    """
    grows = result.headroom_bytes >= 0
    sizes = [(one.adds_bytes if grows else one.saves_bytes, one) for one in result.limits]
    found = [(size, one) for size, one in sizes if size is None or size > 0]
    return [one for _, one in sorted(found, key=lambda row: (row[0] is not None, -(row[0] or 0)))]


def _within(sizes: Iterable[int | None], room: int) -> bool:
    """Whether sizes are all known, and together at most `room`."""
    known = list(sizes)
    return None not in known and sum(size or 0 for size in known) <= room
