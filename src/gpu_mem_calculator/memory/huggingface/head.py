"""Behind the stack: final norm, logits, and the loss."""

from __future__ import annotations

from ...model.arch import Arch
from ...model.blocks import Linear
from ..tape import Tape
from ..walk import Walk, walk
from .norms import norm
from .ops import Setting, linear


def head_walk(setting: Setting, arch: Arch) -> Walk:
    """Final norm, lm_head, and ForCausalLMLoss (loss/loss_utils.py:51).

    The logits are made in the matmul's dtype, copied to fp32, and cross_entropy keeps only the
    fp32 log-softmax. Backward makes the gradient of that, then of the logits, in fp32.
    """
    tape = Tape()
    x = tape.value("stack.output", setting.tokens * setting.hidden, setting.bits)
    out = x if arch.final_norm is None else norm(tape, setting, x, arch.final_norm)
    head = arch.head or Linear("lm_head", ("embed", arch.hidden), ("vocab", arch.vocab))
    logits = linear(tape, setting, out, head)
    if arch.logit_softcap:
        scaled = tape.op("logits.scaled", logits)
        capped = tape.op("logits.tanh", scaled, save_out=True)
        logits = tape.op("logits.capped", capped)
    wide = tape.cast(logits, 32)
    log_softmax = tape.op("loss.log_softmax", wide, save_out=True)
    tape.hold(logits, wide)
    loss = tape.op("loss", log_softmax, elements=1, bits=32)
    tape.hold(logits)
    return walk(tape, x, loss)
