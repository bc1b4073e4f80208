"""How high a script's own tensors get between DeepSpeed's cues, and at them."""

from __future__ import annotations

from ...autograd.events import BlockEvents
from ...autograd.peak import PeakParts, PeakTracker
from ...ledger.num import Num
from ...ledger.remember import remembered
from .hook_points import Cue, all_cues, forward_cues, gradients

Heights = tuple[tuple[Num, PeakParts], ...]  # in all, and in parts


def _between(
    script: BlockEvents,
    events: tuple[int, ...],
    cues: list[Cue],
    act: Num,
    left_out: tuple[int, ...],
) -> Heights:
    """Two for every cue, the most before it and what is there at it, and one behind the last."""
    sizes, work, out = script.sizes, frozenset(script.work), frozenset(left_out)
    found: list[tuple[Num, PeakParts]] = []
    temp: Num = 0
    done = 0
    for position in (*(cue[0] for cue in cues), len(events)):
        high = PeakTracker(act, 0, temp)
        for event in events[done:position]:
            tensor = event if event >= 0 else ~event
            if tensor in out:
                continue
            size = sizes[tensor] if event >= 0 else -sizes[tensor]
            if tensor in work:
                temp = temp + size
            else:
                act = act + size
            if event >= 0:
                high.see(act, 0, temp)
        done = max(done, position)
        found += [(high.total, high.moment), (act + temp, PeakParts(act, 0, temp))]
    return tuple(found[:-1])


@remembered(512)
def forward_heights(script: BlockEvents, more: Num = 0) -> Heights:
    """A forward; `more`: bytes that are there beside it."""
    cues = sorted(forward_cues(script), key=lambda cue: cue[0])
    return _between(script, script.forward, cues, script.sizes[script.entry] + more, ())


@remembered(512)
def backward_heights(script: BlockEvents, *, again: bool = False, output: bool = False) -> Heights:
    """A backward; `again`: the block runs forward before, `output`: and holds what that gave."""
    given = script.sizes[script.exit_grad]
    if script.exit < 0:  # the embedding's
        return _between(script, script.backward, all_cues(script), given, gradients(script))
    act = given + (script.sizes[script.exit] if output else 0) + _kept(script)
    found = _between(script, script.backward, all_cues(script), act, gradients(script))
    return (*forward_heights(script, given), *found) if again else found


def _kept(script: BlockEvents) -> Num:
    """What forward leaves for backward; the output belongs to the next block."""
    total: Num = script.sizes[script.entry] - script.sizes[script.exit]
    for event in script.forward:
        total = total + (script.sizes[event] if event >= 0 else -script.sizes[~event])
    return total
