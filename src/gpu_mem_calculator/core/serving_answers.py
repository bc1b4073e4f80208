"""Answers about a server: capacity, speed, changes."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from .calculator import Estimate
from .inference_config import SpeedResult
from .runfile import read
from .serving_capacity import CapacityMatrix, ServingChange, fewest_gpus, matrix, what_ifs
from .serving_speed import no_speed, speed


class Answers(Struct, frozen=True, kw_only=True):
    """The table of contexts and sequences, how fast it could be, and what changes would bring."""

    matrix: CapacityMatrix
    speed: SpeedResult | None
    no_speed: str  # why there is none
    what_ifs: list[ServingChange]
    fewest_gpus: ServingChange | None = None  # asked where it does not fit as it is


def answers(
    estimate: Estimate,
    contexts: Sequence[int] = (),
    concurrencies: Sequence[int] = (),
    *,
    changes: bool = True,
) -> Answers:
    """All answers for one estimate; empty `contexts` or `concurrencies` take the defaults.

    Without `changes` none are tried, some of which take a replay.
    """
    file = read(estimate.result.run)
    fewest = fewest_gpus(file) if changes and not estimate.result.fits_on_gpu else None
    same = fewest.setting if fewest is not None else ()
    return Answers(
        matrix=matrix(estimate, contexts, concurrencies),
        speed=speed(estimate),
        no_speed=no_speed(estimate),
        what_ifs=[one for one in what_ifs(file) if one.setting != same] if changes else [],
        fewest_gpus=fewest,
    )
