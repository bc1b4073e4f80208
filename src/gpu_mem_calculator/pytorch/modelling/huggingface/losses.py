"""Losses that take all logits: torch's, flash-attn's and Liger's cross entropy, smoothed labels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from ....ledger.num import SINGLE, sized
from ....ledger.source import Source, code
from ...autograd.tape import Tape, Value

if TYPE_CHECKING:
    from .setting import BlockSetting

Walk = Callable[..., Value]
Reads = Literal["logits", "weight"]


class LossKernel(Struct, frozen=True, cache_hash=True):
    """A loss as a head runs it.

    - walk: writes the loss to a tape. transformers' head calls walk(tape, setting, logits, input of
      the output layer), or walk(tape, setting, that input, output layer) where it reads the weight;
      Megatron's calls walk(tape, setting, logits)
    - source: where it is written what the loss saves
    - reads: all logits, or the output layer's weight, from which it computes logits itself
    """

    walk: Walk
    source: Source
    reads: Reads = "logits"

    @property
    def only_ints(self) -> bool:
        """True: a kernel has no sizes, so it can be part of a cache's key."""
        return True


def kernel(source: str, reads: Reads = "logits") -> Callable[[Walk], LossKernel]:
    """Decorator: makes a kernel of a function that writes a loss to a tape."""
    return lambda walk: LossKernel(walk, code(source), reads)


@kernel("transformers 5.17.0 loss/loss_utils.py:51 ForCausalLMLoss")
def full(tape: Tape, setting: BlockSetting, logits: Value, out: Value) -> Value:
    """ForCausalLMLoss (transformers 5.17.0 loss/loss_utils.py:51): logits in fp32, torch's cross
    entropy. `out`: the input of the output layer, which the model's forward names.
    """
    logits32 = tape.cast(logits, 32)
    log_softmax = tape.op("loss.log_softmax", logits32, save_out=True)
    tape.hold(logits, logits32)
    loss = tape.op("loss", log_softmax, elements=1, bits=32)
    tape.hold(logits, out)
    return loss


def compiled(tape: Tape, setting: BlockSetting, logits: Value, out: Value) -> Value:
    """The same under torch.compile: one kernel reads the logits. It saves two fp32 numbers of each
    token, the largest logit and the logarithm of the sum.

    Their gradient overwrites the logits, which the graph may reuse (torch 2.13 _functorch/config.py
    donated_buffer), unless they are themselves what the model returns: under autocast accelerate
    1.15.0 returns an fp32 copy (utils/operations.py convert_outputs_to_fp32).
    """
    stats = tape.value("loss.stats", 2 * setting.tokens, 32, grad=False)
    donated = setting.autocast and not setting.quirks.loss_apart
    return tape.op("loss", logits, elements=1, bits=32, saves=(logits, stats), hands_over=donated)


@kernel("torch 2.11 aten/src/ATen/native/LossNLL.cpp cross_entropy_loss")
def full_no_upcast(tape: Tape, setting: BlockSetting, logits: Value, out: Value) -> Value:
    """torch's cross entropy of the logits as they are, as in nanoGPT's and litgpt's loops.

    Its log-softmax has the logits' dtype even under autocast, because the dtype is given (torch
    2.11 aten/src/ATen/native/LossNLL.cpp cross_entropy_loss); nll_loss then runs on an fp32 copy,
    which it saves.
    """
    log_softmax = tape.op("loss.log_softmax", logits, save_out=True)
    wide = tape.cast(log_softmax, 32) if setting.autocast else log_softmax
    loss = tape.op("loss", wide, elements=1, saves=(wide,))
    tape.hold(logits, out)
    return loss


@kernel("flash-attn 2.8.3 flash_attn/ops/triton/cross_entropy.py")
def flash_fused(
    tape: Tape,
    setting: BlockSetting,
    logits: Value,
    out: Value,
    *,
    upcast: bool = True,
    in_place: bool = False,
) -> Value:
    """flash-attn's cross entropy (flash-attn 2.8.3 flash_attn/ops/triton/cross_entropy.py): it
    saves the logits and one number per token. In backward their gradient has their dtype, and is
    new, or overwrites them.

    The kernel takes logits in any dtype, and computes a row in fp32. transformers' loss, which
    Axolotl's flash_attn_cross_entropy patches in fixed_cross_entropy, has made an fp32 copy by
    then; llm-foundry gives it the logits as they are.
    """
    tokens = setting.tokens
    read = tape.cast(logits, 32) if upcast else logits
    lse = tape.value("loss.lse", tokens, 32, grad=False)
    losses = tape.op(
        "loss.tokens",
        read,
        elements=tokens,
        bits=32,
        saves=(read, lse),
        temp=sized(tokens, 32),
        saves_late=True,
        hands_over=in_place,
    )
    if upcast:
        tape.hold(logits, read)
    loss = tape.op("loss", losses, elements=1)
    tape.hold(logits, out)
    return loss


flash_fused_in_place = replace(flash_fused, walk=partial(flash_fused.walk, in_place=True))
flash_fused_no_upcast = replace(flash_fused, walk=partial(flash_fused.walk, upcast=False))


@kernel("liger-kernel 0.8.5 ops/cross_entropy.py")
def liger(tape: Tape, setting: BlockSetting, logits: Value, out: Value) -> Value:
    """LigerCrossEntropyFunction (liger-kernel 0.8.5 ops/cross_entropy.py) in the place of torch's
    cross entropy: it overwrites the fp32 logits with their gradient in forward, and saves that.
    """
    logits32 = tape.cast(logits, 32)
    loss = tape.op(
        "loss", logits32, elements=1, bits=32, saves=(logits32,), saves_late=True, hands_over=True
    )
    tape.hold(logits, logits32, out)
    return loss


def smoothed(tape: Tape, setting: BlockSetting, logits: Value, out: Value) -> Value:
    """LabelSmoother (transformers 5.17.0 trainer_pt_utils.py:426) on what the model returns.

    Where torch autocasts, accelerate 1.15 returns fp32 logits (utils/operations.py
    convert_outputs_to_fp32). The last token's logits are left out, which copies the others if there
    are several sequences. gather saves what it reads. The sum's gradient is an expanded view, to
    which the other is added in a new tensor; in 16 bits it is cast to a whole one.
    """
    if setting.autocast:
        logits = tape.cast(logits, 32)
    rows = setting.batch * (setting.seq - 1)
    elements = logits.elements() // setting.seq * (setting.seq - 1)
    batch = setting.batch if isinstance(setting.batch, SINGLE) else max(setting.batch.flat)
    if int(batch) > 1:
        kept = tape.op("loss.shifted", logits, elements=elements)
    else:
        kept = tape.view("loss.shifted", logits, elements)
    log_softmax = tape.op("loss.log_softmax", kept, save_out=True)
    log_probs = tape.op("loss.negative", log_softmax)
    labels = tape.value("loss.labels", rows, 64, grad=False)
    picked = tape.op("loss.picked", log_probs, elements=rows, saves=(log_probs, labels))
    wide = log_probs.bits == 32
    summed = tape.op("loss.summed", log_probs, elements=rows, bits=32, passes=wide, views=wide)
    tape.hold(logits, kept, log_probs)
    return tape.op("loss", picked, summed, elements=1, bits=32)


@kernel("trl 1.16.0 trainer/reward_trainer.py compute_loss")
def reward(tape: Tape, setting: BlockSetting, logits: Value, out: Value) -> Value:
    """The scores of the last tokens, one for each sequence, and a loss of their differences
    (transformers 5.17.0 modeling_layers.py GenericForSequenceClassification; trl 1.16.0
    trainer/reward_trainer.py compute_loss).
    """
    index = [tape.value(f"loss.index{n}", setting.batch, 64, grad=False) for n in (0, 1)]
    scores = tape.op("loss.scores", logits, elements=setting.batch, saves=index)
    tape.hold(logits, out)
    return tape.op("loss", scores, elements=1, bits=32)
