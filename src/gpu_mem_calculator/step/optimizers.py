"""Optimizers: the states of each, and what its step allocates and frees.

One row for each optimizer. States have the dtype of the parameters that are stepped, unless a row
says otherwise. torch 2.13 torch/optim (2.11 is the same), bitsandbytes 0.50.2 optim. Temporaries
were checked against traces of torch's own step on the CPU, and on a GPU where a row says so.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from ..autograd.reductions import row_sum_workspace
from ..ledger.num import EMPTY, Bytes, Num, ceil_div, choose, round_up, sized

FOREACH, FUSED, FORLOOP = "foreach", "fused", "forloop"
MIN_8BIT_ELEMENTS = 4096  # smaller tensors keep fp32 states (bitsandbytes optimizer.py:492-529)
PAGED_ELEMENTS = 100_000  # smaller tensors are not paged (bitsandbytes optimizer.py:383-390)
NORM_CHUNK = 65_536  # elements that one block of torch's foreach norm reduces


class Optimizer(Struct, frozen=True):
    """One row of the table.

    - `states`: tensors of the parameter's size and dtype; `bits`: their width where it is fixed.
    - `block`: elements that share an fp32 scale (8-bit states).
    - `foreach`: temporaries at the peak of a foreach step, in tensors as large as all parameters;
      `forloop`: of a for loop, in tensors as large as the largest parameter.
    - `factored`: one row and one column of second moments instead of a whole tensor.
    - `paged`: states are in unified memory, which the driver moves to the host.
    - `matrices`: Newton-Schulz iterations in bf16, one matrix at a time.
    - `default`: the implementation that torch chooses on a GPU.
    """

    states: int
    bits: int = 0
    block: int = 0
    foreach: int = 0
    forloop: int = 0
    factored: bool = False
    paged: bool = False
    matrices: bool = False
    implementations: tuple[str, ...] = (FOREACH, FUSED, FORLOOP)
    default: str = FOREACH


# adam(w) foreach: sqrt(exp_avg_sq) of every parameter (optim/adam.py:704-799), 0 B off in 15
#   measured runs; for loop: a square root and its quotient (adam.py:544-546).
# sgd: every operation is in place (optim/sgd.py:429-511).
# adafactor: foreach=None stays a for loop (_adafactor.py:636-639), which holds one estimate
#   (:366-416); foreach holds those of every matrix (:564-599).
# muon has a for loop only (_muon.py:365). bitsandbytes steps in one fused kernel a tensor.
OPTIMIZERS = {
    "adamw": Optimizer(states=2, foreach=1, forloop=2),
    "adam": Optimizer(states=2, foreach=1, forloop=2),
    "sgd": Optimizer(states=0),
    "sgd_momentum": Optimizer(states=1),
    "adafactor": Optimizer(
        states=0,
        factored=True,
        foreach=1,
        forloop=1,
        implementations=(FOREACH, FORLOOP),
        default=FORLOOP,
    ),
    "adamw_8bit": Optimizer(states=2, bits=8, block=256, implementations=(), default=FUSED),
    "paged_adamw_8bit": Optimizer(
        states=2, bits=8, block=256, paged=True, implementations=(), default=FUSED
    ),
    "lion": Optimizer(states=1, bits=32, implementations=(), default=FUSED),
    "lion_8bit": Optimizer(states=1, bits=8, block=256, implementations=(), default=FUSED),
    "muon": Optimizer(states=1, matrices=True, implementations=(FORLOOP,), default=FORLOOP),
}


def state_bytes(row: Optimizer, elements: Num, bits: int) -> Bytes:
    """Bytes of optimizer states for `elements` parameters of `bits`.

    8-bit states add one fp32 scale for each block of 256 (bitsandbytes functional.py, blockwise);
    bitsandbytes' Lion has fp32 states for every dtype (optimizer.py:374-390). Tensors under 4,096
    elements have fp32 states and are counted here like larger ones: see `tensor_state_bytes`.
    """
    width = row.bits or bits
    size = sized(elements * row.states, width)
    if row.block:
        size = size + sized(row.states * ceil_div(elements, row.block), 32)
    return size


def tensor_state_bytes(row: Optimizer, elements: int, bits: int) -> Bytes:
    """Bytes of the states of one tensor, with bitsandbytes' rule for small ones."""
    if row.block and elements < MIN_8BIT_ELEMENTS:
        return sized(row.states * elements, 32)
    return state_bytes(row, elements, bits)


def tensor_states(row: Optimizer, elements: int, bits: int) -> list[Bytes]:
    """Bytes of each state of one tensor, then of the scales of 8-bit ones.

    bitsandbytes' paged states are no torch tensors and are left out.
    """
    small = row.block and elements < MIN_8BIT_ELEMENTS
    paged = bool(paged_bytes(row, elements, bits))
    state = [] if paged else [sized(elements, 32 if small else row.bits or bits)] * row.states
    scale = sized(ceil_div(elements, row.block), 32) if row.block else EMPTY
    scales = [] if small or not row.block else [scale] * row.states
    return state + scales


def paged_bytes(row: Optimizer, elements: int, bits: int) -> Bytes:
    """Bytes of one tensor's paged states: all but the scales, from 100,000 elements on.

    bitsandbytes 0.50.2 optim/optimizer.py:383-390 get_state_buffer; the scales are torch tensors
    on the GPU (init_state).
    """
    if not row.paged or elements < PAGED_ELEMENTS:
        return EMPTY
    return sized(row.states * elements, row.bits or bits)


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
    sets = [[sized(largest, bits)] * row.forloop]
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
        return sized(largest * row.forloop, bits)
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
    work = [sized(current, bits)] * row.forloop
    if row.factored and columns:
        sums = row_sum_workspace(rows, columns)
        work = [sums] if sums > sum(work) else work
    return [sized(previous, bits), *work]


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


def default_implementation(name: str) -> str:
    """The implementation that runs on a GPU when the run does not choose one."""
    return OPTIMIZERS[name].default
