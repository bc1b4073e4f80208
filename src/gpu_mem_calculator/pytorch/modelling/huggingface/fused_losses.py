"""Losses that compute the logits themselves, a part at a time, from the output layer's weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....ledger.num import EMPTY, Bytes, Num, ceil_div, choose, power_of_two, sized, smaller
from .losses import kernel

if TYPE_CHECKING:
    from ....models.arch.blocks import Linear
    from ...autograd.tape import Tape, Value
    from .setting import BlockSetting

TOKEN_CHUNK = 4096  # trl 1.16.0 kernels/chunked_logprob.py TOKEN_CHUNK_SIZE


def _weight(tape: Tape, setting: BlockSetting, layer: Linear) -> Value:
    return tape.param(
        f"{layer.name}.weight", layer.numel, setting.weight_bits, grad=not setting.frozen
    )


def liger_chunk(tokens: Num, vocab: Num, hidden: Num) -> Num:
    """Tokens of a chunk of Liger's fused loss: its logits are about as large as its input
    (liger-kernel 0.8.5 ops/fused_linear_cross_entropy.py).
    """
    return smaller(power_of_two(ceil_div(tokens, ceil_div(vocab, hidden))), tokens)


@kernel("liger-kernel 0.8.5 ops/fused_linear_cross_entropy.py", reads="weight")
def liger_fused(tape: Tape, setting: BlockSetting, x: Value, layer: Linear) -> Value:
    """LigerFusedLinearCrossEntropyFunction (liger-kernel 0.8.5 ops/fused_linear_cross_entropy.py).

    Forward computes the gradients of input and weight, chunk by chunk, and saves both; backward
    returns them.
    """
    weight = _weight(tape, setting, layer)
    grads = [tape.value("loss.input_grad", x.elements(), x.bits, grad=False)]
    if weight.grad:
        grads.append(tape.value("loss.weight_grad", weight.elements(), weight.bits, grad=False))
    cached = tape.cast(weight, 16) if setting.autocast else weight
    loss = tape.op(
        "loss",
        x,
        weight,
        elements=1,
        bits=32,
        saves=grads,
        temp=_liger_temp(setting, x, weight, layer),
        inside=True,
        mask_first=True,
        saves_late=True,
        hands_over=True,
        matmul=True,
    )
    tape.hold(x, cached)  # autocast caches the weight's cast until forward ends
    return loss


def _liger_temp(setting: BlockSetting, x: Value, weight: Value, layer: Linear) -> tuple[Bytes, ...]:
    """What one chunk allocates.

    Under autocast the transposed weight is cast again for each chunk, besides the cast that
    autocast has cached since the first. fp32 logits, and cards before Ampere, have a gradient of
    the whole weight for each chunk, which is then added.
    """
    vocab, hidden = layer.outs[1], layer.ins[1]
    tokens = x.elements() // hidden
    chunk = liger_chunk(tokens, vocab, hidden)
    bits = 16 if setting.autocast else x.bits
    logits = sized(chunk * vocab, bits)
    cast: tuple[Bytes, ...] = ()
    if setting.autocast and weight.bits == 32:
        again = choose(chunk < tokens, sized(weight.elements(), 16), EMPTY)
        cast = (again if weight.grad else EMPTY, sized(chunk * hidden, 16))
    whole: tuple[Bytes, ...] = ()
    if weight.grad and bits == 32:
        whole = (sized(weight.elements(), 32),)
    elif weight.grad and not setting.flash:
        whole = (sized(weight.elements(), bits), sized(weight.elements(), 32))
    return (*cast, logits, *whole)


@kernel("trl 1.16.0 kernels/chunked_logprob.py ChunkedLogProbFunction", reads="weight")
def chunked(tape: Tape, setting: BlockSetting, x: Value, layer: Linear) -> Value:
    """ChunkedLogProbFunction in add_fused_lm_head (trl 1.16.0 trainer/utils.py,
    kernels/chunked_logprob.py), on the tokens that have a label.

    Logits are computed in tiles of 4,096 tokens and `loss_chunk` vocabulary entries, in forward and
    again in backward, where both gradients are summed in fp32, then cast. There a part of the
    weight that is cast has a name until the next one exists.
    """
    weight, hidden = _weight(tape, setting, layer), layer.ins[1]
    rows = setting.labels
    kept = tape.view("loss.shifted", x, setting.batch * (setting.seq - 1) * hidden)
    index = [tape.value(f"loss.index{n}", rows, 64, grad=False) for n in (0, 1)]
    picked = tape.op("loss.picked", kept, elements=rows * hidden, saves=index)
    bits = 16 if setting.autocast else x.bits
    token_chunk = smaller(rows, TOKEN_CHUNK)
    tile = sized(token_chunk * setting.loss_chunk, bits)
    casts: tuple[Bytes, ...] = ()
    if bits != picked.bits:
        casts += (sized(token_chunk * hidden, bits),)
    again = EMPTY
    if bits != weight.bits:
        part = sized(smaller(layer.outs[1], setting.loss_chunk) * hidden, bits)
        casts += (part,)
        again = choose(layer.outs[1] > setting.loss_chunk, part, EMPTY)
    sums = (*[sized(rows * hidden, 32)] * (x.bits < 32),)
    sums += (*[sized(weight.elements(), 32)] * (weight.bits < 32 and weight.grad),)
    saved = [
        tape.value("loss.labels", rows, 64, grad=False),
        tape.value("loss.log_z", rows, 32, grad=False),
    ]
    each = tape.op(
        "loss.tokens",
        picked,
        weight,
        elements=rows,
        bits=32,
        saves=(picked, *saved),
        temp=(*[sized(rows, 32)] * 7, tile, *casts),
        back_temp=(*sums, tile, *casts, again),
        grads_first=not sums,
        saves_late=True,
        inputs_first=True,
        matmul=True,
    )
    tape.hold(x, picked)
    return tape.op("loss", each, elements=1)


@kernel("cut-cross-entropy 25.1.1 cce.py LinearCrossEntropyFunction", reads="weight")
def cut(tape: Tape, setting: BlockSetting, x: Value, layer: Linear) -> Value:
    """linear_cross_entropy (cut-cross-entropy 25.1.1 cce.py, cce_backward.py): no logits at all.

    Its input has 16 bits; the weight's gradient does too, and is cast to the weight's dtype. Tokens
    are numbered, and the mean logit of each vocabulary entry is saved to order them.
    """
    weight = _weight(tape, setting, layer)
    x16 = tape.cast(x, 16)
    rows, vocab = setting.batch * (setting.seq - 1), layer.outs[1]
    saved = [
        tape.value("loss.lse", rows, 32, grad=False),
        tape.value("loss.valids", rows, 64, grad=False),
        tape.value("loss.logit_avg", vocab, 32, grad=False),
    ]
    wide = weight.grad and weight.bits > 16
    loss = tape.op(
        "loss",
        x16,
        weight,
        elements=1,
        bits=32,
        saves=(x16, *saved),
        back_temp=(sized(vocab, 64 + 32), sized(weight.elements(), 16) if wide else EMPTY),
        saves_late=True,
        inputs_first=True,
    )
    tape.hold(x, x16)
    return loss
