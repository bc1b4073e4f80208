"""Vocabulary-parallel losses: Megatron's own, and Transformer Engine's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....ledger.num import EMPTY, Bytes, holds, sized
from ...autograd.tape import Tape, Value
from ..huggingface.losses import kernel

if TYPE_CHECKING:
    from .ops import MegatronSetting


@kernel("megatron-core 0.19.2 tensor_parallel/cross_entropy.py:25-181")
def full(tape: Tape, setting: MegatronSetting, logits: Value) -> Value:
    """An fp32 copy of the logits becomes the softmax in place and is saved; backward turns that
    into the gradient in place and autograd casts it to the logits' dtype
    (tensor_parallel/cross_entropy.py:25-181).
    """
    return _cross_entropy(tape, setting, logits, in_place=setting.bits == 32)


@kernel("megatron-core 0.19.2 fusions/fused_cross_entropy.py")
def fused(tape: Tape, setting: MegatronSetting, logits: Value) -> Value:
    """The same, compiled function by function (fusions/fused_cross_entropy.py).

    Backward makes a second fp32 tensor, into which it puts the targets' gradients, and casts the
    result to bf16: torch 2.13 inductor compiles calculate_gradients to a new buffer for index_put,
    and to the output. Where the logits are not bf16, autograd then casts it once more.
    """
    if setting.bits < 32:
        return _cross_entropy(tape, setting, logits, work=sized(logits.elements(), 32))
    narrow = sized(logits.elements(), 16)
    target = _targets(tape, setting)
    return tape.op(
        "loss", logits, elements=setting.tokens, saves=(*target, logits), back_temp=narrow
    )


@kernel("Transformer Engine 2.18 pytorch/triton/cross_entropy.py:58")
def transformer_engine(tape: Tape, setting: MegatronSetting, logits: Value) -> Value:
    """Transformer Engine 2.18: forward writes the gradient to an fp32 tensor and saves it; autograd
    casts it to the logits' dtype (pytorch/triton/cross_entropy.py:58). Before 2.18 forward
    overwrites the logits with their gradient (2.17 pytorch/triton/cross_entropy.py:111).
    """
    if setting.loss_in_place:
        return _given_gradient(tape, setting, logits, logits)
    saved = tape.value("loss.gradient", logits.elements(), 32, grad=False)
    if setting.bits == 32:
        return _given_gradient(tape, setting, logits, saved)
    work = _row_statistics(setting)
    return tape.op("loss", logits, elements=setting.tokens, bits=32, saves=(saved,), temp=work)


def _given_gradient(tape: Tape, setting: MegatronSetting, logits: Value, gradient: Value) -> Value:
    """A loss whose forward has made the logits' gradient: the output layer's backward reads it."""
    tape.ops[-1].saves += (gradient,)
    size = setting.tokens * 32 // setting.bits  # fp32, counted in the dtype that passes on
    return tape.op("loss", logits, elements=size, passes=True, temp=_row_statistics(setting))


def _row_statistics(setting: MegatronSetting) -> Bytes:
    """Bytes of three fp32 numbers a token, and of those of all tensor-parallel ranks."""
    return sized(3 * setting.tokens * (1 + setting.tp * holds(setting.tp > 1)), 32)


def _cross_entropy(
    tape: Tape,
    setting: MegatronSetting,
    logits: Value,
    *,
    in_place: bool = False,
    work: Bytes = EMPTY,
) -> Value:
    """Saves targets and their mask, and the fp32 softmax: the logits themselves if `in_place`.
    `work`: bytes of workspace in backward.
    """
    saves = _targets(tape, setting)
    if in_place:
        tape.ops[-1].saves += (logits,)
    else:
        saves.append(tape.value("loss.softmax", logits.elements(), 32, grad=False))
    return tape.op(
        "loss",
        logits,
        elements=setting.tokens,
        bits=32,
        saves=saves,
        passes=in_place,
        back_temp=work,
    )


def _targets(tape: Tape, setting: MegatronSetting) -> list[Value]:
    """Token ids and a mask of those that another rank has."""
    return [tape.value("loss.target", setting.tokens * 9, 8, grad=False)]
