"""Behind the stack: final norm, output layer, and the vocabulary-parallel loss."""

from __future__ import annotations

from ...autograd.tape import Tape
from ...autograd.walk import BlockWalk, walk
from ...ledger.num import Num
from ...model.blocks import Norm
from .norms import norm
from .ops import MegatronSetting, column_linear


def head_walk(how: MegatronSetting, final: Norm | None, vocab: Num) -> BlockWalk:
    """`final` is the norm before it, `vocab` this rank's part of the vocabulary.

    The cross entropy turns an fp32 copy of the logits into the softmax in place and keeps it;
    backward turns that into the gradient in place and autograd casts it to the logits' dtype
    (tensor_parallel/cross_entropy.py:25-181). The logits stay named until the loss returns.
    """
    tape = Tape()
    tape.inputs_first = True  # tensor_parallel/layers.py:626, 725
    x = tape.value("stack.output", how.local_tokens * how.hidden, how.bits)
    out = x if final is None else norm(tape, how, x, final)
    logits = column_linear(tape, how, out, "output_layer", how.hidden, vocab, core=True)
    kept = [tape.value("loss.target", how.tokens * 9, 8, grad=False)]
    if how.bits < 32:
        kept.append(tape.value("loss.softmax", logits.elements(), 32, grad=False))
    else:  # fp32 logits are themselves turned into the softmax, and that into their gradient
        tape.ops[-1].saves += (logits,)
    loss = tape.op("loss", logits, elements=how.tokens, bits=32, saves=kept,
                   passes=how.bits == 32)  # fmt: skip
    tape.hold(logits)
    return walk(tape, x, loss)
