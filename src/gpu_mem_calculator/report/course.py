"""The columns of a training step's picture: its course, layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..estimates.calculator import STEP, Estimate
from ..ledger.ledger import RUNTIME
from .instants import InstantColumn, KindSlice, column
from .patterns import titles

if TYPE_CHECKING:
    from ..estimates.step_course import Moment

MOST = 160  # columns
APART = 50  # of the ledger's peak, one part in this: by no more may the course's differ


def course_columns(
    estimate: Estimate,
    *,
    window: tuple[int, int] | None = None,
    most: int = MOST,
    named: bool = False,
) -> tuple[InstantColumn, ...]:
    """The last step of an estimate as at most about `most` columns; none where it has no stream.

    - window: the first and the last stretch that are wanted; None: all
    - named: the tensors of the block at work have names

    The highest column is the ledger's, in whose words the tables are.
    """
    from ..estimates.step_course import step_course  # servers have none

    if estimate.serves:
        return ()
    ledger, stage = estimate.ledger, estimate.result.busiest_stage
    course = step_course(estimate.resolved, stage, ledger)
    if course is None:
        return ()
    end = len(course.shape.stretches) - 1
    first, last = (min(max(place, 0), end) for place in window or (0, end))
    outside = [(name, size) for name, size, _ in estimate.outside_torch]
    parts = window is not None
    moments = course.moments(first, max(first, last), most, named=named, parts=parts)
    kinds = titles(ledger)
    columns = [_column(moment, kinds, outside) for moment in moments]
    highest = column(ledger, ledger.peak_instant(phases=STEP), outside)
    top = max(range(len(columns)), key=lambda i: columns[i].bytes)
    beyond = abs(columns[top].bytes - highest.bytes)
    if beyond <= highest.bytes // APART:
        at = columns[top]
        place = {name: getattr(at, name) for name in ("layer", "micro_batch", "first", "last")}
        columns[top] = replace(highest, **place)
    elif window is None:
        return ()
    return tuple(columns)


def _column(moment: Moment, kinds: dict[str, str], outside: list[tuple[str, int]]) -> InstantColumn:
    rows: dict[str, list[tuple[str, int]]] = {kind: [] for kind in kinds}
    rows[RUNTIME] += outside
    for kind, name, num_bytes in moment.rows:
        rows.setdefault(kind, []).append((name, num_bytes))
    at, doing = moment.stretch, moment.doing.removeprefix(f"{moment.stretch.title}: ")
    return InstantColumn(
        title=f"{at.title}: {doing}" if moment.part and doing else at.title,
        phase=at.phase,
        slices=tuple(
            KindSlice(kind, sum(size for _, size in each), tuple(sorted(each, key=lambda r: -r[1])))
            for kind, each in rows.items()
        ),
        layer=0 if at.block is None or at.block < 0 else at.block + 1,
        micro_batch=at.micro_batch,
        first=moment.first,
        last=moment.last,
    )
