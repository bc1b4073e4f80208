"""Answers about a server: users by context, speed, what changes bring, what makes it fit."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from ...estimates.calculator import Estimate, resolved_verdict
from ...estimates.fit_verdict import FITS
from ...estimates.serving.capacity import CapacityMatrix, ContextUsers, matrix, users_by_context
from ...estimates.serving.infer_command import InferCommand
from ...estimates.serving.speed import no_speed, speed
from ...runfile.inference_config import SpeedResult
from .changes import Server, ServingChange, what_ifs


class Answers(Struct, frozen=True, kw_only=True):
    """What people ask of a server, beside its memory."""

    matrix: CapacityMatrix
    speed: SpeedResult | None
    no_speed: str  # why there is none
    what_ifs: list[ServingChange]
    fewest_gpus: ServingChange | None = None  # where it does not fit as it is
    users: list[ContextUsers] = []
    remedies: list[ServingChange] = []  # where it does not fit as it is
    largest_context: int | None = None  # that fits, with llama.cpp
    largest_batch: int | None = None  # that fits, with transformers


def answers(
    estimate: Estimate,
    contexts: Sequence[int] = (),
    concurrencies: Sequence[int] = (),
    *,
    changes: bool = True,
    command: InferCommand | None = None,
) -> Answers:
    """All answers for one estimate; empty `contexts` or `concurrencies` take the defaults.

    Without `changes` none are tried, some of which take a replay. `command` is the command line
    that asked, which the changes are added to.
    """
    server, short = Server.of(estimate, command), not estimate.result.figures_fit
    table = matrix(estimate, contexts, concurrencies)
    found: list[ServingChange] = []
    if changes and short:
        from .server_remedies import remedies

        found = remedies(server)
    now = estimate.resolved.hardware.num_gpus
    fewest = next((one for one in found if len(one.changes) == 1 and one.gpus > now), None)
    same = fewest.setting if fewest is not None else ()
    return Answers(
        matrix=table,
        speed=speed(estimate),
        no_speed=no_speed(estimate),
        what_ifs=[one for one in what_ifs(server) if one.setting != same] if changes else [],
        fewest_gpus=fewest,
        users=users_by_context(estimate, table),
        remedies=found,
        largest_context=_largest_context(estimate),
        largest_batch=_largest_batch(estimate) if changes else None,
    )


def _largest_context(estimate: Estimate) -> int | None:
    """The longest context that fits on every GPU, of engines whose cache has a fixed size."""
    found = [one.largest_context() for one in estimate.served if one.largest_context]
    return min(found, default=None)


def _largest_batch(estimate: Estimate) -> int | None:
    """The largest batch of this prompt that fits without a pool; 0 where none does.

    The ledger gives an upper bound; the allocator decides.
    """
    run = estimate.resolved.run
    if estimate.served or estimate.replayed is None:
        return None
    batch = matrix(estimate, (int(run.seq + run.generated),), (1,)).most[0]
    while batch > 0:
        larger = replace(estimate.resolved, run=replace(run, batch=batch))
        if resolved_verdict(larger) == FITS:
            return batch
        batch = min(batch - 1, batch * 15 // 16)
    return 0
