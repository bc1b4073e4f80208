"""What the step of an optimizer allocates and frees, and clipping before it."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from ...ledger.num import EMPTY, Bytes, Num, ceil_div, choose, round_up, sized
from ...pytorch.autograd.events import BlockEvents, EventRecorder
from ...pytorch.autograd.reductions import row_sum_workspace
from ..optimizers import FOREACH, FORLOOP, Optimizer

NORM_CHUNK = 65_536  # elements that one block of torch's foreach norm reduces


def step_temps(
    row: Optimizer,
    implementation: str,
    sizes: Iterable[tuple[int, int]],
    bits: int,
    neighbours: Iterable[tuple[int, int, int, int]],
    largest: int,
    side: int,
) -> list[Bytes]:
    """Bytes of each tensor that `step_temp_bytes` or `loop_temp_bytes` sums."""
    if row.matrices:
        return muon_temps(largest, side, bits)
    if implementation == FOREACH:
        return [sized(n, bits) for n, count in sizes for _ in range(count * row.foreach)]
    if implementation != FORLOOP or not row.forloop:
        return []
    sets = [_loop_temps(row, bits, 0, largest, 0, 0)]
    sets += [_loop_temps(row, bits, *one) for one in neighbours]
    return max(sets[1:] or sets, key=sum)


def step_temp_bytes(
    row: Optimizer, implementation: str, elements: Num, largest: Num, bits: int, side: Num = 0
) -> Bytes:
    """Bytes of the step's temporaries at their peak, for `elements` parameters of `bits`.

    A for loop has them for one parameter at a time (`loop_temp_bytes` counts the previous one's,
    too), fused kernels have none. `side` is the shorter side of the largest matrix, for Muon.
    """
    if row.matrices:
        total = EMPTY
        for size in muon_temps(largest, side, bits):
            total = total + size
        return total
    if implementation == FOREACH:
        return sized(elements * row.foreach, bits)
    if implementation == FORLOOP:
        return sized(largest * _loop_tensors(row, bits), row.bits or bits)
    return EMPTY


def loop_temp_bytes(
    row: Optimizer, neighbours: frozenset[tuple[int, int, int, int]], bits: int
) -> Bytes:
    """Bytes of the temporaries of a loop over the parameters, at their peak.

    `neighbours`: for consecutive parameters, the elements of the previous and of the current one,
    and the rows and columns of the current one.
    """
    return max((sum(_loop_temps(row, bits, *one), EMPTY) for one in neighbours), default=EMPTY)


def _loop_temps(
    row: Optimizer, bits: int, previous: int, current: int, rows: int, columns: int
) -> list[Bytes]:
    """Bytes of each temporary of a loop at one parameter.

    Python still refers to the previous parameter's estimate while the current one's is made, and
    Adafactor's norm over rows leaves partial sums (_adafactor.py:366-416).
    """
    width = row.bits or bits
    work = [sized(current, width)] * _loop_tensors(row, bits)
    if row.factored and columns and not row.copies:
        sums = row_sum_workspace(rows, columns)
        work = [sums] if sums > sum(work) else work
    return [sized(previous, width), *work]


def _loop_tensors(row: Optimizer, bits: int) -> int:
    """Temporaries of a loop that are as large as the parameter."""
    return row.forloop + (row.copies if bits == 16 else 0)


def loop_events(row: Optimizer, shapes: Iterable[tuple[int, ...]], bits: int) -> BlockEvents | None:
    """Allocations and frees of the loop of transformers' Adafactor; None for other optimizers.

    transformers 5.17.0 optimization.py Adafactor.step: its names refer to the previous parameter's
    tensors until the current one's replace them.
    """
    if not row.copies:
        return None
    recorder = EventRecorder()
    copies: list[int] = []
    update: list[int] = []
    for shape in shapes:
        size = sized(prod(shape), row.bits)
        for index in range(row.copies if bits == 16 else 0):  # the gradient, the parameter
            recorder.over(copies[index : index + 1])
            copies[index : index + 1] = recorder.work((size,))
        squared, total = recorder.work((size, size))
        recorder.over((*update, squared))
        update = recorder.work((size,))
        recorder.over((total,))
        recorder.over(recorder.work((size,)))  # -update
    recorder.over((*copies, *update))
    return recorder.forward_only(())


def muon_temps(elements: Num, side: Num, bits: int) -> list[Bytes]:
    """Bytes of each temporary of Newton-Schulz on one matrix of n elements with a shorter side m
    (_muon.py:50-70, 332-341).

    In bf16 max(6n + 4m², 4n + 6m²) bytes: three matrices and two m × m products, or two and
    three; fp32 parameters have the update (4n) and one matrix less.
    """
    update = sized(elements, bits) if bits > 16 else EMPTY
    matrix, square = sized(elements, 16), sized(side * side, 16)
    matrices = 2 if bits > 16 else 3
    last = choose(matrix >= square, matrix, square)
    return [update, *[matrix] * (matrices - 1), square, square, last]


def clip_temp_bytes(tensors: Num, largest: Num) -> Bytes:
    """Bytes that clip_grad_norm_ allocates, all freed before the step.

    One fp32 buffer of partial sums, as many for every tensor as the largest has chunks of
    65,536 elements, and a 512-byte block for each norm (nn/utils/clip_grad.py:95,
    aten ForeachReduceOp.cu); 0 B off in a measured SGD run: 4,987,904.
    """
    sums = sized(tensors * ceil_div(largest, NORM_CHUNK), 32)
    return round_up(sums, 512) + sized(tensors, 8 * 512)
