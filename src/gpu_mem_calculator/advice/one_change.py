"""The one line of an answer with the one change that fits, in the words of the run's tool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..estimates.calculator import Estimate
from ..estimates.fit_verdict import FITS
from ..estimates.summary import summary
from ..tools.read import Asked

if TYPE_CHECKING:
    from ..estimates.checked import Checked
    from .serving.changes import ServingChange
    from .training.remedies import Remedy

    Change = Remedy | ServingChange

MOST = 240  # characters of the line: three rows of a terminal


def pasted_line(estimate: Estimate, changes: Sequence[Change] | None = None) -> str:
    """The line made for an issue or a chat. `changes` are those with which the run fits, the best
    first, where they are known; else they are looked for.
    """
    if estimate.result.verdict == FITS:
        return estimate.result.summary
    found = changes_of(estimate) if changes is None else changes
    if not found:
        return estimate.result.summary
    lines = [summary(estimate.result, one) for one in _words(estimate, _first(estimate, found))]
    return next((one for one in lines if len(one) <= MOST), lines[-1])


def with_change(checked: Checked) -> Checked:
    """The answer of `check` whose `summary` has the one change that fits."""
    if checked.estimate is None:
        return checked
    return replace(checked, data={**checked.data, "summary": pasted_line(checked.estimate)})


def changes_of(estimate: Estimate) -> Sequence[Change]:
    """The smallest sets of changes with which a run fits."""
    if estimate.serves:
        from .serving.changes import Server
        from .serving.server_remedies import remedies as server_remedies

        return server_remedies(Server.of(estimate))
    from .training.remedies import remedies

    return remedies(estimate)


def _first(estimate: Estimate, changes: Sequence[Change]) -> Change:
    """The first on these cards that trains the whole model, where it does, else the first."""
    from .training.remedies import Remedy, adapts

    count = estimate.resolved.hardware.num_gpus
    for one in changes:
        if isinstance(one, Remedy):
            same = not adapts(one) and not any(key.startswith("hardware.") for key in one.settings)
        else:
            same = one.gpus <= count
        if same:
            return one
    return changes[0]


def _words(estimate: Estimate, change: Change) -> Iterator[str]:
    """`fits with` and the change: the options of the run's tool, else its titles, then fewer."""
    from .diagnosis.own_words import changed_words

    settings, titles, certain = _told(change)
    own, asked = "", estimate.asked
    if asked is not None and asked.reading is not None:
        from .diagnosis.program_words import program_words

        own = changed_words(asked, settings) or program_words(asked, settings)
    elif estimate.served:
        own = changed_words(Asked(run=estimate.result.run), settings)
    code = ", ".join(f"`{one}`" for one in own.splitlines())
    begin = f"{'fits' if certain else 'may fit'} with "
    yield begin + (code or ", ".join(titles))
    for many in range(len(titles) - 1, 0, -1):
        yield f"{begin}{', '.join(titles[:many])} and {len(titles) - many} more"


def _told(change: Change) -> tuple[tuple[str, ...], Sequence[str], bool]:
    """The settings of a change, its titles, and whether it is certain to fit."""
    from .training.remedies import Remedy

    if isinstance(change, Remedy):
        return change.settings, change.changes, change.certain
    return change.setting, (change.title,), change.fits
