"""What torch's own kernels move, and the share of the bandwidth at which they do."""

from __future__ import annotations

from ...ledger.num import Num
from ...pytorch.autograd.tape import Op
from ..curves import elementwise as shares

# Bytes of backward besides those of the operation's gradients and saved tensors, in units of its
# output. pow_backward (torch 2.11 FunctionsManual.cpp) copies its input, scales it, multiplies. A
# product with a tensor that was broadcast is multiplied whole, then summed (sum_to_size).
POWERS, BROADCASTS = (".pow", "act.cube"), (".normed",)
PRODUCTS = ("mlp.product",)  # the output's gradient is read for each factor
MORE_OF_POWER, MORE_OF_BROADCAST = 4, 3
WEIGHT_CASTS = (".weight.to", ".bias.to")  # by autocast: backward writes the weight's own gradient


def share(op: Op, norms: frozenset[str], *, backward: bool) -> float:
    """The share of the bandwidth that the kernel of an operation reaches."""
    name = op.name
    if name.endswith(".to"):
        widens = bool(op.outs[0].bits > op.ins[0].bits)
        return shares.WIDENED if widens != backward else shares.PLAIN
    if "log_softmax" in name:
        return shares.LOG_SOFTMAX_BACKWARD if backward else shares.LOG_SOFTMAX
    if "softmax" in name:
        return shares.SOFTMAX[32 if op.outs[0].bits == 32 else 16]
    if "dropout" in name or "dropped" in name:
        return shares.DROPOUT
    if name.startswith("rotary"):
        return shares.BROADCAST
    if name.endswith(BROADCASTS) or (name in norms and is_product_of_norm(op)):
        return shares.BROADCAST_BACKWARD if backward else shares.BROADCAST
    if name in norms:
        return shares.NORM_BACKWARD if backward else shares.NORM
    return shares.ACTIVATION if name in ("act", "activation") else shares.PLAIN


def is_product_of_norm(op: Op) -> bool:
    """Whether an operation named as a norm is its last: the product with its weight."""
    return any(value.name.endswith(".to") or ".normed" in value.name for value in op.ins)


def more_backward(op: Op, norms: frozenset[str]) -> Num:
    """Bytes that backward moves besides gradients and saved tensors."""
    size = op.outs[0].bytes
    if op.name.endswith(WEIGHT_CASTS):
        return op.ins[0].bytes
    if op.name.endswith(POWERS):
        return size * MORE_OF_POWER
    if op.name in PRODUCTS:
        return size
    if op.name.endswith(BROADCASTS) or (op.name in norms and is_product_of_norm(op)):
        return size * MORE_OF_BROADCAST
    return 0
