"""Behind the stack: final norm, logits, and the loss."""

from __future__ import annotations

from msgspec.structs import replace

from ...model.arch import Arch
from ...model.blocks import Linear
from ..tape import Tape
from ..walk import Walk, walk
from .norms import norm
from .ops import Setting, linear


def head_walk(setting: Setting, arch: Arch, tape: Tape | None = None) -> Walk:
    """Final norm, lm_head, and ForCausalLMLoss (loss/loss_utils.py:51).

    The logits are made in the matmul's dtype, copied to fp32, and cross_entropy keeps only the
    fp32 log-softmax. Backward makes the gradient of that, then of the logits, in fp32. `tape`: one
    of the engine's own, whose operations keep other things.
    """
    setting = replace(setting, quantization=None)  # bitsandbytes leaves the head as it is
    own, tape = tape is None, tape or Tape()
    bits = 32 if arch.layers[-1].fp32_residual else setting.bits
    x = tape.value("stack.output", setting.tokens * setting.hidden, bits)
    out = x if arch.final_norm is None else norm(tape, setting, x, arch.final_norm)
    tape.hold(x)  # the model names it until the norm has returned
    for weight in arch.head_extra:
        if len(weight.dims) == 2:  # OPT-350M projects back to the embedding's width
            out = linear(tape, setting, out, Linear(weight.name, weight.dims[1], weight.dims[0]))
    head = arch.head or Linear("lm_head", arch.embedding[0].dims[1], ("vocab", arch.vocab))
    logits = linear(tape, setting, out, head)
    if arch.tied:
        for value in tape.weights():
            value.waits = value.name == f"{head.name}.weight"
    if arch.logit_softcap:
        scaled = tape.op("logits.scaled", logits)
        capped = tape.op("logits.tanh", scaled, save_out=True)
        logits = tape.op("logits.capped", capped)
    wide = tape.cast(logits, 32)
    log_softmax = tape.op("loss.log_softmax", wide, save_out=True)
    tape.hold(logits, wide)
    loss = tape.op("loss", log_softmax, elements=1, bits=32)
    tape.hold(logits, out)
    if own and not setting.frozen:
        tied = arch.embedding[0].numel if arch.tied else 0
        tape.rest(arch.after_parameters + tied, setting.weight_bits)
    return walk(tape, x, loss)
