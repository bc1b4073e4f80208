"""Peak bytes of one block's tensors between and at the points where DeepSpeed's hooks run."""

from __future__ import annotations

from ....ledger.num import EMPTY, Bytes, Num
from ....ledger.remember import remembered
from ....pytorch.autograd.events import BlockEvents
from ....pytorch.autograd.peak import PeakParts, PeakTracker
from .hook_points import HookPoint, all_hook_points, forward_hook_points, weight_gradients

BlockPeaks = tuple[tuple[Num, PeakParts], ...]  # bytes in all, and by kind


def _peaks(
    block: BlockEvents,
    events: tuple[int, ...],
    hook_points: list[HookPoint],
    act: Bytes,
    left_out: tuple[int, ...],
) -> BlockPeaks:
    """Two for each hook point: the peak since the one before, and the bytes at it. Then the peak
    after the last one.

    events: of the block's forward or backward
    act: bytes of activations that are alive before the first event
    left_out: tensors that are not counted
    """
    sizes, work, out = block.sizes, frozenset(block.work), frozenset(left_out)
    peaks: list[tuple[Num, PeakParts]] = []
    temp = EMPTY
    passed = 0
    for position in (*(point[0] for point in hook_points), len(events)):
        high = PeakTracker(act, EMPTY, temp)
        for event in events[passed:position]:
            tensor = event if event >= 0 else ~event
            if tensor in out:
                continue
            size = sizes[tensor] if event >= 0 else -sizes[tensor]
            if tensor in work:
                temp = temp + size
            else:
                act = act + size
            if event >= 0:
                high.see(act, EMPTY, temp)
        passed = max(passed, position)
        peaks += [(high.total, high.moment), (act + temp, PeakParts(act, EMPTY, temp))]
    return tuple(peaks[:-1])


@remembered(512)
def forward_peaks(block: BlockEvents, more: Bytes = EMPTY) -> BlockPeaks:
    """The peaks of a block's forward. `more`: bytes that are alive all the while."""
    hook_points = sorted(forward_hook_points(block), key=lambda point: point[0])
    return _peaks(block, block.forward, hook_points, block.entry_bytes + more, ())


@remembered(512)
def backward_peaks(block: BlockEvents, *, again: bool = False, output: bool = False) -> BlockPeaks:
    """The peaks of a block's backward, without the gradients of its weights.

    again: the block runs forward again before, and the peaks of that come first
    output: the output of that forward stays alive
    """
    gradient = block.sizes[block.exit_grad]
    if block.exit < 0:  # the embedding's
        return _peaks(
            block, block.backward, all_hook_points(block), gradient, weight_gradients(block)
        )
    act = gradient + (block.sizes[block.exit] if output else EMPTY) + _saved_bytes(block)
    peaks = _peaks(block, block.backward, all_hook_points(block), act, weight_gradients(block))
    gradients = gradient + block.before_recompute()
    return (*forward_peaks(block, gradients), *peaks) if again else peaks


def _saved_bytes(block: BlockEvents) -> Bytes:
    """Bytes that forward leaves for backward, without the output, which is the next block's."""
    given = sum((block.sizes[tensor] for tensor in block.given), EMPTY)
    total = block.sizes[block.entry] - block.sizes[block.exit] + given
    for event in block.forward:
        total = total + (block.sizes[event] if event >= 0 else -block.sizes[~event])
    return total
