"""The operations of Megatron-Core's layers, with the sizes of one rank's shard.

Line numbers refer to megatron-core 0.19.2 (paths under megatron/core) and Transformer Engine
2.18. Tensor parallelism shards the inside of attention and MLP; sequence parallelism also shards
the activations between them (norms, residual stream, dropout) along the sequence, and gathers them
around every matmul.
"""

from __future__ import annotations

from msgspec import Struct

from ....ledger.num import EMPTY, Bytes, Num, holds, sized, together
from ....models.arch.blocks import Norm, Share
from ...autograd.reductions import row_sum_workspace
from ...autograd.tape import Tape, Value


class MegatronSetting(Struct, frozen=True, kw_only=True):
    """How one rank runs a layer. Sizes may be ints, arrays or `Sym`s.

    - batch: sequences of a micro-batch
    - seq: tokens of a whole sequence, which context parallelism shards
    - hidden: the model's width
    - tp, cp, ep, etp: ranks of tensor, context, expert and expert tensor parallelism
    - gathers_tokens: every rank gets all tokens and picks its experts', instead of all-to-all
    - capacity: most tokens of an expert as a multiple of an even share; None: any number
    - pads_experts: every expert gets as many tokens as its capacity
    - bits: of activations and matmuls
    - fused_attention: Transformer Engine runs FlashAttention or cuDNN's, where they have a kernel
    - fused_weight_gradients: weight-gradient kernels add to the fp32 buffer directly
    - selective: core attention is checkpointed
    - recomputed: other modules that are, by Megatron's names
    - loss_in_place: Transformer Engine's loss overwrites the logits
    - share: of every parameter's elements, where a parameter count was given
    """

    batch: Num
    seq: Num
    hidden: Num
    tp: Num = 1
    cp: Num = 1
    ep: Num = 1
    etp: Num = 1
    gathers_tokens: bool = False
    capacity: float | None = None
    pads_experts: bool = False
    bits: int = 16
    sequence_parallel: bool = False
    transformer_engine: bool = True
    fused_attention: bool = True
    fused_softmax: bool = False
    float_softmax: bool = True
    fused_weight_gradients: bool = False
    selective: bool = False
    recomputed: tuple[str, ...] = ()
    loss_in_place: bool = False
    share: Share | None = None

    @property
    def length(self) -> Num:
        """Tokens of one sequence on this rank."""
        return self.seq // self.cp

    @property
    def tokens(self) -> Num:
        """Tokens of a micro-batch inside attention and MLP."""
        return self.batch * self.length

    @property
    def local_tokens(self) -> Num:
        """Tokens of a micro-batch between them, which sequence parallelism shards."""
        return self.tokens // self.tp if self.sequence_parallel else self.tokens

    @property
    def gathers(self) -> Num:
        """1 where activations are gathered around matmuls, else 0."""
        return holds(self.tp > 1) if self.sequence_parallel else 0

    def full_bytes(self, width: Num) -> Bytes:
        """Bytes of a gathered [s, b, width] tensor; 0 where nothing is gathered."""
        return sized(self.tokens * width, self.bits) * self.gathers


def weight(tape: Tape, setting: MegatronSetting, name: str, elements: Num) -> Value:
    """A weight; its gradient is a short-lived tensor unless the kernel adds it in place."""
    return tape.param(
        f"{name}.weight", elements, setting.bits, grad=not setting.fused_weight_gradients
    )


def column_linear(
    tape: Tape,
    setting: MegatronSetting,
    x: Value,
    name: str,
    ins: Num,
    outs: Num,
    *,
    core: bool = False,
    gathered_outs: Num | None = None,
    bias: bool = False,
) -> Value:
    """Record a matmul sharded along its output; it saves its input, sharded along the sequence.

    `gathered_outs`: columns of the result, where that is gathered over the ranks. A bias is added
    in a new tensor (layers.py:576-578), and its gradient is a sum over rows (layers.py:726).

    With sequence parallelism the input is gathered in both directions and its gradient is computed
    in full, then reduce-scattered (tensor_parallel/layers.py:548-640). Megatron's own layer
    (`core`) gathers into one buffer that stays, Transformer Engine into a new tensor
    (module/layernorm_linear.py).
    """
    full = setting.full_bytes(ins)
    new_gather = setting.transformer_engine and not core
    size = setting.tokens * (outs if gathered_outs is None else gathered_outs)
    separate_bias = bias and not setting.transformer_engine
    back_gather = 2 * full if new_gather else full
    bias_work = bias_sum(setting.tokens, outs) if separate_bias else None
    return tape.op(
        name,
        x,
        weight(tape, setting, name, ins * outs),
        saves=(x,),
        elements=size,
        temp=(full if new_gather else EMPTY, sized(size, setting.bits) if separate_bias else EMPTY),
        back_temp=back_gather + bias_work if bias_work is not None else (full, back_gather - full),
        settle=bias_work,
        matmul=True,
    )


def bias_sum(rows: Num, columns: Num) -> Bytes:
    """Bytes of workspace of a bias's gradient, which is a sum over rows."""
    if type(columns) is int:
        return row_sum_workspace(rows, columns)
    (size,) = together(lambda r, c: (int(row_sum_workspace(r, c)),), rows, columns)
    return sized(size, 8)


def row_linear(
    tape: Tape, setting: MegatronSetting, x: Value, name: str, ins: Num, outs: Num
) -> Value:
    """Record a matmul sharded along its input; the sum over ranks is reduce-scattered along the
    sequence.

    The full product, and in backward the gathered gradient, are workspace.
    """
    full = setting.full_bytes(outs)
    return tape.op(
        name,
        x,
        weight(tape, setting, name, ins * outs),
        elements=setting.local_tokens * outs,
        saves=(x,),
        temp=full,
        back_temp=full,
        matmul=True,
    )


def replicated_linear(
    tape: Tape, setting: MegatronSetting, x: Value, name: str, ins: Num, outs: Num
) -> Value:
    """Record a matmul that every rank of a tensor-parallel group repeats on its own tokens."""
    return tape.op(
        name,
        x,
        weight(tape, setting, name, ins * outs),
        elements=setting.local_tokens * outs,
        saves=(x,),
        matmul=True,
    )


def residual(tape: Tape, x: Value, branch: Value, rate: float) -> Value:
    """Record bias + dropout + add in one compiled kernel (fusions/fused_bias_dropout.py).

    It saves a boolean mask where the rate is above zero, and nothing else.
    """
    if not rate:
        return tape.op("residual", x, branch, passes=True)
    mask = tape.value(f"{branch.name}.mask", branch.elements(), 8, grad=False)
    (dropped,) = tape.split("dropout", branch, [(f"{branch.name}.dropped", branch.elements())])
    return tape.op("residual", x, dropped, passes=True, saves=(mask,), mask_first=True)


def norm(tape: Tape, setting: MegatronSetting, x: Value, layer: Norm) -> Value:
    """Record a norm, which saves its input and fp32 statistics per row: mean and deviation, or the
    deviation alone.

    torch_norm.py (LayerNorm, RMSNorm), Transformer Engine module/layernorm_linear.py:445.
    """
    width = layer.size[1]
    rows = x.elements() // width
    count = 2 if layer.impl.startswith("layer") else 1
    stats = tape.value(f"{layer.name}.statistics", rows * count, 32, grad=False)
    ins = [x]
    if layer.affine:
        ins.append(tape.param(f"{layer.name}.weight", width, setting.bits))
    return tape.op(layer.name, *ins, saves=(x, stats))
