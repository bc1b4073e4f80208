"""The kernels between matmuls and attention: bytes that they read and write, from a layer's
operations, and the seconds that takes.

Each operation of a tape that is neither a matmul nor an attention kernel is one kernel. It reads
its inputs and writes its output. Its backward reads the gradient of the output and what was saved,
and writes the gradients of the inputs. A tensor that two operations read gets two gradients, which
one more kernel adds. Torch's own kernels reach the shares of the bandwidth in
`curves/elementwise.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from ...ledger.num import Num, holds
from ...pytorch.autograd.tape import ATTENTION, MM, Op, Value
from ..curves import elementwise as shares
from ..curves.elementwise import ELSEWHERE, KERNEL_SECONDS, PLAIN, ROWS
from ..curves.machine import Machine
from .step_seconds import Seconds, summed

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


SCORES = ("attn.scores", "attn.mixed")  # batched matmuls of attention that stores its scores
EXCHANGES = ("moe.received", "moe.returned", "moe.reduced")  # collectives
IN_PLACE = ("attn.mask",)  # overwrites its input
WITH_PRODUCT = ("attn.softmax",)  # its backward writes grad · output, and reads it again
LOSS = "loss"  # of log probabilities: it reads one of each row
NOTHING_ABSENT: Mapping[str, Num] = {}
NOT_CORE = ("attn.split", "attn.q_copy", "attn.v_contiguous")  # of what is named attn


class MemoryKernel(Struct, frozen=True):
    """A kernel that memory bounds: its operation, the bytes that it reads and writes, the share of
    the memory's bandwidth that it reaches.
    """

    name: str
    num_bytes: Num
    share: float = ELSEWHERE

    @property
    def core(self) -> bool:
        """Whether it is part of core attention."""
        return self.name.startswith("attn.") and self.name not in NOT_CORE


class Traffic(Struct, frozen=True):
    """The kernels of a block that are neither matmuls nor attention.

    launches, back_launches: kernels of forward and of backward, matmuls and attention included
    """

    forward: tuple[MemoryKernel, ...] = ()
    backward: tuple[MemoryKernel, ...] = ()
    launches: Num = 0
    back_launches: Num = 0


def elementwise_seconds(machine: Machine, kernels: Iterable[MemoryKernel]) -> Seconds:
    """Seconds of kernels, by the bytes that each reads and writes and the share that it reaches."""

    def of_one(kernel: MemoryKernel) -> Seconds:
        num_bytes: Any = kernel.num_bytes
        moved = num_bytes / (machine.memory_bytes_per_second * kernel.share)
        return moved + KERNEL_SECONDS * holds(num_bytes > 0)

    return summed(map(of_one, kernels))


def traffic(
    ops: Iterable[Op],
    norms: frozenset[str],
    linears: frozenset[str],
    absent: Mapping[str, Num] = NOTHING_ABSENT,
    *,
    torch_kernels: bool = False,
) -> Traffic:
    """The kernels of some operations; `norms`, `linears`: names of the block's modules. `absent`: 1
    where an operation that an array of meshes has does not run. `torch_kernels`: each operation is
    a kernel of torch.
    """
    forward: list[MemoryKernel] = []
    backward: list[MemoryKernel] = []
    launches: Num = 0
    back_launches: Num = 0
    reads: Counter[int] = Counter()
    for op in ops:
        if not op.outs or op.name in EXCHANGES:
            continue
        for value in op.ins:
            reads[value.index] += value.grad and not value.param
            if reads[value.index] > 1:
                added = PLAIN if torch_kernels else ELSEWHERE
                backward.append(MemoryKernel(f"{value.name}.grad", 3 * value.bytes, added))
                back_launches = back_launches + 1
        if is_product(op, norms, linears):
            runs = holds(_sum(op.outs) > 0)
            launches, back_launches = launches + runs, back_launches + 2 * runs
            if torch_kernels and any(v.name.endswith(".bias") and v.grad for v in op.ins):
                backward.append(MemoryKernel(f"{op.name}.bias", _sum(op.outs), ROWS))
            continue
        present = 1 - absent.get(op.name, 0)
        written = [one for one in op.outs if one.base == one.index]  # with a storage of their own
        runs = holds(_sum(op.outs) * present > 0)
        if written or op.name in IN_PLACE:
            changed = written or op.outs
            moved = (_sum(op.ins) + _sum(changed)) * present
            forward.append(_kernel(op, norms, moved, torch_kernels, backward=False))
            launches = launches + runs
        if not op.passes and op.outs[0].grad:
            moved = _backward_bytes(op, written) * present
            backward.append(_kernel(op, norms, moved, torch_kernels, backward=True))
            back_launches = back_launches + runs
    return Traffic(tuple(forward), tuple(backward), launches, back_launches)


def _kernel(
    op: Op, norms: frozenset[str], moved: Num, torch_kernels: bool, *, backward: bool
) -> MemoryKernel:
    """The kernel of an operation that moves these bytes."""
    if not torch_kernels:
        return MemoryKernel(op.name, moved)
    if backward:
        moved = moved + more_backward(op, norms)
    elif op.name == LOSS:
        moved = 0
    return MemoryKernel(op.name, moved, share(op, norms, backward=backward))


def is_product(op: Op, norms: frozenset[str], linears: frozenset[str]) -> bool:
    """Whether an operation is a matmul or an attention kernel."""
    if op.matmul or op.kernel in (MM, ATTENTION) or op.name in SCORES or op.name in linears:
        return True
    if op.name == "attn.out" and len(op.ins) > 1:
        return True
    if any(op.name == name or op.name.startswith(f"{name}.") for name in norms):
        return False
    return any(v.weight and not v.name.endswith(".bias") for v in op.ins) and len(op.ins) > 1


def _backward_bytes(op: Op, written: list[Value]) -> Num:
    """What the backward of an operation reads and writes; of a view, it copies the gradient."""
    ins = [value for value in op.ins if value.grad and not value.param]
    work = 2 * op.back_temp if op.name in WITH_PRODUCT else 0
    return _sum(op.outs) + (_sum(op.saves) if written else 0) + _sum(ins) + work


def _sum(values: Iterable[Value]) -> Num:
    return sum(value.bytes for value in values)
