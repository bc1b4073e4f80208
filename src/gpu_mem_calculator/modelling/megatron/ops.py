"""The operations that Megatron-Core's layers are made of, with sizes after its cuts.

Line numbers refer to megatron-core 0.19.2 (paths under megatron/core) and Transformer Engine
2.18. Tensor parallelism cuts the inside of attention and MLP; sequence parallelism also cuts
what lies between them (norms, residual stream, dropout) along the sequence, and gathers it
around every matmul.
"""

from __future__ import annotations

from msgspec import Struct

from ...autograd.reductions import row_sum_workspace
from ...autograd.tape import Tape, Value
from ...ledger.num import Num, holds, together
from ...model.blocks import Share


class MegatronSetting(Struct, frozen=True, kw_only=True):
    """How one rank runs a layer. Sizes may be ints, arrays or `Sym`s."""

    batch: Num
    seq: Num  # of the whole sample; context parallelism cuts it
    hidden: Num
    tp: Num = 1
    cp: Num = 1
    ep: Num = 1
    bits: int = 16
    sequence_parallel: bool = False
    transformer_engine: bool = True
    fused_softmax: bool = False
    float_softmax: bool = True
    fused_weight_gradients: bool = False  # wgrad kernels add into the fp32 buffer directly
    selective: bool = False  # core attention is checkpointed
    share: Share | None = None  # of every parameter, where a count was given

    @property
    def length(self) -> Num:
        """Tokens of one sample on this rank."""
        return self.seq // self.cp

    @property
    def tokens(self) -> Num:
        """Tokens of a micro-batch inside attention and MLP."""
        return self.batch * self.length

    @property
    def local_tokens(self) -> Num:
        """Tokens between them: sequence parallelism cuts these."""
        return self.tokens // self.tp if self.sequence_parallel else self.tokens

    @property
    def gathers(self) -> Num:
        """1 where activations are gathered around matmuls, else 0."""
        return holds(self.tp > 1) if self.sequence_parallel else 0

    def full_bytes(self, width: Num) -> Num:
        """A gathered [s, b, width] tensor; nothing where nothing is gathered."""
        return self.tokens * width * self.bits // 8 * self.gathers


def weight(tape: Tape, how: MegatronSetting, name: str, elements: Num) -> Value:
    """A weight; its gradient is a tensor for a moment unless the kernel adds it in place."""
    return tape.param(f"{name}.weight", elements, how.bits, grad=not how.fused_weight_gradients)


def column_linear(
    tape: Tape, how: MegatronSetting, x: Value, name: str, ins: Num, outs: Num, *,
    core: bool = False, wide: Num = None, bias: bool = False,
) -> Value:  # fmt: skip
    """A matmul cut along its output; keeps its (sequence-cut) input. `wide`: of what comes out,
    where that is gathered again. A bias is added in a new tensor (layers.py:576-578), and its
    gradient is a sum over rows (layers.py:726).

    With sequence parallelism the input is gathered in both directions and its gradient is made
    in full, then reduce-scattered (tensor_parallel/layers.py:548-640). Megatron's own layer
    (`core`) gathers into one buffer that stays, Transformer Engine into a new tensor
    (module/layernorm_linear.py).
    """
    full = how.full_bytes(ins)
    once = how.transformer_engine and not core
    size = how.tokens * (outs if wide is None else wide)
    apart = bias and not how.transformer_engine
    gathered = 2 * full if once else full
    summed = bias_sum(how.tokens, outs) if apart else None
    return tape.op(
        name, x, weight(tape, how, name, ins * outs), saves=(x,), elements=size,
        temp=(full if once else 0, size * how.bits // 8 if apart else 0),
        back_temp=gathered + summed if apart else (full, gathered - full), settle=summed,
    )  # fmt: skip


def bias_sum(rows: Num, columns: Num) -> Num:
    """Workspace of the sum over rows that is a bias's gradient."""
    if type(columns) is int:
        return row_sum_workspace(rows, columns)
    return together(lambda r, c: (row_sum_workspace(r, c),), rows, columns)[0]


def row_linear(tape: Tape, how: MegatronSetting, x: Value, name: str, ins: Num, outs: Num) -> Value:
    """A matmul cut along its input; the sum over ranks is reduce-scattered along the sequence.

    The full product, and in backward the gathered gradient, are there for a moment.
    """
    full = how.full_bytes(outs)
    return tape.op(
        name, x, weight(tape, how, name, ins * outs), elements=how.local_tokens * outs,
        saves=(x,), temp=full, back_temp=full,
    )  # fmt: skip


def whole_linear(
    tape: Tape, how: MegatronSetting, x: Value, name: str, ins: Num, outs: Num
) -> Value:
    """A matmul that every rank of a tensor-parallel group repeats on its own tokens."""
    return tape.op(
        name, x, weight(tape, how, name, ins * outs), elements=how.local_tokens * outs, saves=(x,)
    )


def residual(tape: Tape, x: Value, branch: Value, rate: float) -> Value:
    """bias + dropout + add in one compiled kernel (fusions/fused_bias_dropout.py).

    It keeps a boolean mask where the rate is above zero, and nothing else.
    """
    if not rate:
        return tape.op("residual", x, branch, passes=True)
    mask = tape.value(f"{branch.name}.mask", branch.elements(), 8, grad=False)
    (dropped,) = tape.split("dropout", branch, [(f"{branch.name}.dropped", branch.elements())])
    return tape.op("residual", x, dropped, passes=True, saves=(mask,))
