"""Gradients that are freed between the first forward of the next step and its backward."""

from __future__ import annotations

from msgspec.structs import replace

from ...run.phases import FORWARD
from .instants import Instants


def with_old_gradients(instants: Instants) -> Instants:
    """The instants of a step, with all of the last step's gradients alive in the first forward:
    those that are alive at the end of a step, which is the last instant.
    """
    *_, end = instants
    old = {name: getattr(end, name) for name in ("grads", "head_grads", "embedding_grads")}
    return tuple(
        replace(i, **old) if i.instant.phase == FORWARD and not i.later else i for i in instants
    )
