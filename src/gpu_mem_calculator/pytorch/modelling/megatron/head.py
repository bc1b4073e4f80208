"""The head: final norm, output layer, and the vocabulary-parallel loss."""

from __future__ import annotations

from ....ledger.num import Num
from ....models.arch.blocks import Norm
from ...autograd.tape import Tape
from ...autograd.walk import BlockWalk, walk
from ..huggingface.losses import LossKernel
from .ops import MegatronSetting, column_linear, norm


def head_walk(
    setting: MegatronSetting, final: Norm | None, vocab: Num, loss: LossKernel, *, shared: bool
) -> BlockWalk:
    """The walk over final norm (`final`), output layer and loss; `vocab`: columns of this rank.

    `shared`: the gradient of the output layer's weight waits for that of the embedding. The logits
    stay named until the loss returns.
    """
    tape = Tape()
    tape.inputs_first = True  # tensor_parallel/layers.py:626, 725
    x = tape.value("stack.output", setting.local_tokens * setting.hidden, setting.bits)
    out = x if final is None else norm(tape, setting, x, final)
    logits = column_linear(tape, setting, out, "output_layer", setting.hidden, vocab, core=True)
    for weight in tape.weights():
        weight.waits = shared and weight.name == "output_layer.weight"
    result = loss.walk(tape, setting, logits)
    tape.hold(logits)
    return walk(tape, x, result)
