"""Optimizers: the states of each, and what its step allocates and frees.

One row for each optimizer. States have the dtype of the parameters that are stepped, unless a row
says otherwise. torch 2.13 torch/optim (2.11 is the same), bitsandbytes 0.50.2 optim. Temporaries
were checked against traces of torch's own step on the CPU, and on a GPU where a row says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.num import EMPTY, Bytes, Num, ceil_div, sized

FOREACH, FUSED, FORLOOP = "foreach", "fused", "forloop"
MIN_8BIT_ELEMENTS = 4096  # smaller tensors keep fp32 states (bitsandbytes optimizer.py:492-529)
PAGED_ELEMENTS = 100_000  # smaller tensors are not paged (bitsandbytes optimizer.py:383-390)


class Optimizer(Struct, frozen=True):
    """One row of the table.

    - `states`: tensors of the parameter's size and dtype; `bits`: their width where it is fixed.
    - `block`: elements that share an fp32 scale (8-bit states).
    - `merged`: how many states are one tensor.
    - `foreach`: temporaries at the peak of a foreach step, in tensors as large as all parameters;
      `forloop`: of a for loop, in tensors as large as the largest parameter; `copies`: fp32 copies
      of a 16-bit parameter and its gradient, besides.
    - `factored`: one row and one column of second moments instead of a whole tensor.
    - `decayed_first`: parameters are stepped in the order of transformers.Trainer: those that decay
      first (trainer.py create_optimizer).
    - `paged`: states are in unified memory, which the driver moves to the host.
    - `from_start`: the states exist when the optimizer is made.
    - `matrices`: Newton-Schulz iterations in bf16, one matrix at a time.
    - `default`: the implementation that torch chooses on a GPU.
    """

    states: int
    bits: int = 0
    block: int = 0
    merged: int = 1
    foreach: int = 0
    forloop: int = 0
    copies: int = 0
    factored: bool = False
    decayed_first: bool = False
    paged: bool = False
    from_start: bool = False
    matrices: bool = False
    implementations: tuple[str, ...] = (FOREACH, FUSED, FORLOOP)
    default: str = FOREACH


def _kernel(states: int, bits: int, *, paged: bool = False, merged: int = 1) -> Optimizer:
    """An optimizer of bitsandbytes: fused kernels, one tensor at a time."""
    return Optimizer(
        states=states,
        bits=bits,
        block=256 if bits == 8 else 0,
        merged=merged,
        paged=paged,
        implementations=(),
        default=FUSED,
    )


# adam(w) foreach: sqrt(exp_avg_sq) of every parameter (optim/adam.py:704-799), 0 B off in 15
#   measured runs; for loop: a square root and its quotient (adam.py:544-546).
# sgd: every operation is in place (optim/sgd.py:429-511).
# adagrad: the root of the sums, and the gradients times the learning rate (adagrad.py:430-466).
# rmsprop: the root of the averages (rmsprop.py:430-470).
# adafactor: foreach=None stays a for loop (_adafactor.py:636-639), which holds one estimate
#   (:366-416); foreach holds those of every matrix (:564-599).
# adafactor_transformers (transformers 5.17.0 optimization.py Adafactor.step): states in fp32; the
#   squared gradient and its sum with eps, beside fp32 copies of a 16-bit gradient and parameter.
# muon has a for loop only (_muon.py:365). bitsandbytes steps in one fused kernel a tensor.
# ademamix: state1 holds both averages of the gradient (bitsandbytes optim/ademamix.py init_state).
OPTIMIZERS = {
    "adamw": Optimizer(states=2, foreach=1, forloop=2),
    "adam": Optimizer(states=2, foreach=1, forloop=2),
    "sgd": Optimizer(states=0),
    "sgd_momentum": Optimizer(states=1),
    "adagrad": Optimizer(states=1, foreach=2, from_start=True, implementations=(FOREACH,)),
    "rmsprop": Optimizer(states=1, foreach=1, implementations=(FOREACH,)),
    "adafactor": Optimizer(
        states=0,
        factored=True,
        foreach=1,
        forloop=1,
        implementations=(FOREACH, FORLOOP),
        default=FORLOOP,
    ),
    "adafactor_transformers": Optimizer(
        states=0,
        bits=32,
        factored=True,
        forloop=2,
        copies=2,
        decayed_first=True,
        implementations=(),
        default=FORLOOP,
    ),
    "adamw_8bit": _kernel(2, 8),
    "paged_adamw": _kernel(2, 32, paged=True),
    "paged_adamw_8bit": _kernel(2, 8, paged=True),
    "ademamix": _kernel(3, 32, merged=2),
    "ademamix_8bit": _kernel(3, 8, merged=2),
    "paged_ademamix": _kernel(3, 32, merged=2, paged=True),
    "paged_ademamix_8bit": _kernel(3, 8, merged=2, paged=True),
    "lion": _kernel(1, 32),
    "lion_8bit": _kernel(1, 8),
    "paged_lion": _kernel(1, 32, paged=True),
    "paged_lion_8bit": _kernel(1, 8, paged=True),
    "rmsprop_bnb": _kernel(1, 32),
    "rmsprop_bnb_8bit": _kernel(1, 8),
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
    width, scales = 32 if small else row.bits or bits, ceil_div(elements, row.block or 1)
    counts = [row.merged, *[1] * (row.states - row.merged)] if row.states else []
    state = [] if paged_bytes(row, elements, bits) else [sized(elements * n, width) for n in counts]
    return state + ([] if small or not row.block else [sized(scales * n, 32) for n in counts])


def by_width(
    row: Optimizer, sizes: Iterable[tuple[int, int]], wide: Iterable[int]
) -> Iterator[tuple[Optimizer, int, int]]:
    """(row, elements, how many) of the parameters; `wide`: elements of those whose states have 32
    bits where the others' have 8 (bitsandbytes 0.50.2 optim/optimizer.py GlobalOptimManager).
    """
    left, wide_row = Counter(wide), replace(row, bits=32, block=0)
    for elements, count in sizes:
        found = min(left[elements], count) if row.block else 0
        left[elements] -= found
        yield from ((one, elements, n) for one, n in ((wide_row, found), (row, count - found)) if n)


def paged_bytes(row: Optimizer, elements: int, bits: int) -> Bytes:
    """Bytes of one tensor's paged states: all but the scales, from 100,000 elements on.

    bitsandbytes 0.50.2 optim/optimizer.py:383-390 get_state_buffer; the scales are torch tensors
    on the GPU (init_state).
    """
    if not row.paged or elements < PAGED_ELEMENTS:
        return EMPTY
    return sized(row.states * elements, row.bits or bits)


def default_implementation(name: str) -> str:
    """The implementation that runs on a GPU when the run does not choose one."""
    return OPTIMIZERS[name].default
