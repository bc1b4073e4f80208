"""Optimizers: what each keeps per parameter, and what its step needs for a moment.

One row a optimizer. States follow the dtype of the parameters they step on, unless a row says
otherwise. torch 2.11 torch/optim, bitsandbytes 0.50.2 optim.
"""

from __future__ import annotations

from msgspec import Struct

from ..ledger.num import Num, ceil_div


class Optimizer(Struct, frozen=True):
    """One row.

    `states`: tensors of the parameter's size and dtype; `bits`: their width where it is fixed.
    `foreach`: parameter-sized temporaries that torch's foreach step holds at its highest moment.
    `factored`: keeps one row and one column of second moments instead of a whole tensor.
    """

    states: int
    bits: int = 0
    block: int = 0  # elements that share an fp32 scale (8-bit states)
    foreach: int = 0
    factored: bool = False
    paged: bool = False  # states live in unified memory, which the driver moves to the host
    implementations: tuple[str, ...] = ("foreach", "fused", "forloop")


OPTIMIZERS = {
    "adamw": Optimizer(states=2, foreach=1),
    "adam": Optimizer(states=2, foreach=1),
    "sgd": Optimizer(states=0),
    "sgd_momentum": Optimizer(states=1),
    "adafactor": Optimizer(states=0, factored=True, implementations=("foreach", "forloop")),
    "adamw_8bit": Optimizer(states=2, bits=8, block=256, implementations=()),
    "paged_adamw_8bit": Optimizer(states=2, bits=8, block=256, paged=True, implementations=()),
    "lion": Optimizer(states=1, implementations=()),
    "lion_8bit": Optimizer(states=1, bits=8, block=256, implementations=()),
    "muon": Optimizer(states=1, implementations=("forloop",)),
}


def state_bytes(row: Optimizer, elements: Num, bits: int) -> Num:
    """Bytes of optimizer state for some parameters of the given width.

    8-bit states add one fp32 scale a block of 256 (bitsandbytes functional.py, blockwise).
    """
    width = row.bits or bits
    size = elements * row.states * width // 8
    if row.block:
        size = size + row.states * 4 * ceil_div(elements, row.block)
    return size


def step_temp_bytes(
    row: Optimizer, implementation: str, elements: Num, largest: Num, bits: int
) -> Num:
    """Bytes that the step holds for a moment.

    foreach AdamW makes sqrt(exp_avg_sq) for every parameter at once (torch/optim/adam.py
    _multi_tensor_adam); a for loop makes it for one parameter at a time; fused kernels for none.
    """
    if implementation == "foreach":
        return elements * row.foreach * bits // 8
    if implementation == "forloop":
        return largest * (row.foreach + row.factored) * bits // 8
    return 0


def default_implementation(name: str) -> str:
    """What torch.optim runs on a GPU when nothing is said."""
    return (*OPTIMIZERS[name].implementations, "")[0]
