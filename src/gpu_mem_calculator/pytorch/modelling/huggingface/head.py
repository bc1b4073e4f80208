"""The head: final norm, logits, and the loss."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from ....ledger.num import Bytes, Num
from ....ledger.remember import remembered
from ....models.arch.arch import Arch
from ....models.arch.blocks import Linear, Norm
from ...autograd.tape import Tape, Value
from ...autograd.walk import BlockWalk, walk
from .layer import residual_bits
from .linear import linear
from .losses import LossKernel, compiled, smoothed
from .norms import norm
from .setting import BlockSetting


class OutputHead(Struct, frozen=True):
    """All of the head that its walk depends on.

    - linears: projections; the last one computes the logits
    - tied: the logits' weight is the embedding's
    - capped: the logits are capped by tanh; scaled: they are multiplied by a number
    - fp32_input: the last layer's output is in fp32
    - parameters: elements of its weights, a tied one included
    """

    norm: Norm | None
    linears: tuple[Linear, ...]
    tied: bool
    capped: bool
    scaled: bool
    fp32_input: bool
    parameters: Num


def _head(setting: BlockSetting, arch: Arch) -> OutputHead:
    """The head of a model. OPT-350M projects back to the embedding's width before the logits."""
    projections = tuple(
        Linear(weight.name, weight.dims[1], weight.dims[0], share=weight.share)
        for weight in arch.head_extra
        if len(weight.dims) == 2
    )
    table = arch.embedding[0]
    tied = Linear("lm_head", table.dims[1], ("vocab", arch.vocab), share=table.share)
    return OutputHead(
        norm=arch.final_norm,
        linears=(*projections, arch.head or tied),
        tied=arch.tied,
        capped=bool(arch.logit_softcap),
        scaled=arch.logit_scale is not None,
        fp32_input=residual_bits(setting, arch.layers[-1]) == 32,
        parameters=arch.after_parameters + (arch.embedding[0].numel if arch.tied else 0),
    )


def head_walk(
    setting: BlockSetting, arch: Arch, tape: Tape | None = None, named: tuple[Bytes, ...] = ()
) -> BlockWalk:
    """The walk over final norm, lm_head and the loss.

    By default the logits are computed in the matmul's dtype, copied to fp32, and cross_entropy
    saves only the fp32 log-softmax. Backward computes the gradient of that, then of the logits, in
    fp32. `tape`:
    an engine's own kind, whose operations save other tensors. `named`: bytes of the embedding's
    outputs, which the model's forward names until it returns from the final norm. Walks whose sizes
    are all ints are remembered.
    """
    head = _head(setting, arch)
    setting = replace(setting, quantization=None)  # bitsandbytes leaves the head as it is
    return _walk(setting, head, tape, named)


@remembered(256)
def _walk(
    setting: BlockSetting, head: OutputHead, tape: Tape | None, named: tuple[Bytes, ...]
) -> BlockWalk:
    default, tape = tape is None, tape or Tape()
    bits = 32 if head.fp32_input else setting.bits
    x = tape.value("stack.output", setting.tokens * setting.hidden, bits)
    out = x if head.norm is None else norm(tape, setting, x, head.norm, setting.liger.head_norm)
    outside = tuple(tape.value("embedding.output", size, 8, grad=False) for size in named)
    tape.hold(x, *outside)  # the model names them until the norm has returned
    for projection in head.linears[:-1]:
        out = linear(tape, setting, out, projection)
    assert setting.loss is not None, "a head needs a loss"
    if setting.loss.reads == "weight":
        loss = setting.loss.walk(tape, setting, out, head.linears[-1])
    else:
        loss = _loss_of_logits(tape, setting, setting.loss, head, out)
    if head.tied:
        for value in tape.weights():
            value.waits = value.name == f"{head.linears[-1].name}.weight"
    if default and not setting.frozen:
        tape.add_other_weights(head.parameters, setting.weight_bits)
    if setting.compiled:
        from ...autograd.compiled import compiled_tape, delay_gradient

        tape = compiled_tape(tape, x, loss)
        for value in tape.weights():
            if value.waits:
                delay_gradient(tape, value)
    return walk(tape, x, loss, outside=outside)


def _loss_of_logits(
    tape: Tape, setting: BlockSetting, kernel: LossKernel, head: OutputHead, out: Value
) -> Value:
    """The loss from logits that are computed whole."""
    logits = linear(tape, setting, out, head.linears[-1])
    if head.capped:
        scaled = tape.op("logits.scaled", logits)
        capped = tape.op("logits.tanh", scaled, save_out=True)
        logits = tape.op("logits.capped", capped)
    elif head.scaled:
        logits = tape.op("logits.scaled", logits)
    if setting.smoothed:
        return smoothed(tape, setting, logits, out)
    if setting.compiled:
        return compiled(tape, setting, logits, out)
    return kernel.walk(tape, setting, logits, out)
