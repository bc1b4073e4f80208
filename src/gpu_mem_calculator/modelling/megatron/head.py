"""The head: final norm, output layer, and the vocabulary-parallel loss."""

from __future__ import annotations

from ...autograd.tape import Tape
from ...autograd.walk import BlockWalk, walk
from ...ledger.num import Num
from ...model.blocks import Norm
from .norms import norm
from .ops import MegatronSetting, column_linear


def head_walk(
    setting: MegatronSetting, final: Norm | None, vocab: Num, *, shared: bool
) -> BlockWalk:
    """The walk over final norm (`final`), output layer and loss; `vocab`: columns of this rank.

    `shared`: the gradient of the output layer's weight waits for that of the embedding.

    The cross entropy turns an fp32 copy of the logits into the softmax in place and saves it;
    backward turns that into the gradient in place and autograd casts it to the logits' dtype
    (tensor_parallel/cross_entropy.py:25-181). The logits stay named until the loss returns.
    """
    tape = Tape()
    tape.inputs_first = True  # tensor_parallel/layers.py:626, 725
    x = tape.value("stack.output", setting.local_tokens * setting.hidden, setting.bits)
    out = x if final is None else norm(tape, setting, x, final)
    logits = column_linear(tape, setting, out, "output_layer", setting.hidden, vocab, core=True)
    for weight in tape.weights():
        weight.waits = shared and weight.name == "output_layer.weight"
    saves = [tape.value("loss.target", setting.tokens * 9, 8, grad=False)]
    if setting.bits < 32:
        saves.append(tape.value("loss.softmax", logits.elements(), 32, grad=False))
    else:  # fp32 logits are themselves turned into the softmax, and that into their gradient
        tape.ops[-1].saves += (logits,)
    loss = tape.op(
        "loss", logits, elements=setting.tokens, bits=32, saves=saves, passes=setting.bits == 32
    )
    tape.hold(logits)
    return walk(tape, x, loss)
