"""A layer, the final norm and the logits in a forward without autograd (transformers 5.17.0)."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ...ledger.num import EMPTY, Num
from ...ledger.remember import remembered
from ...models.arch.arch import Arch, Layer
from ...models.arch.blocks import Attention, LatentAttention, Linear, StateSpace
from ...pytorch.autograd.forward import ForwardPass, inference_pass
from ...pytorch.autograd.peak import PeakParts
from ...pytorch.autograd.tape import Tape, Value
from ...pytorch.modelling.huggingface.cache import LayerCache, StaticLayerCache
from ...pytorch.modelling.huggingface.layer import run_layer
from ...pytorch.modelling.huggingface.linear import linear
from ...pytorch.modelling.huggingface.norms import norm
from ...pytorch.modelling.huggingface.setting import BlockSetting
from ...pytorch.modelling.huggingface.state_space import state_parts
from .decode_steps import DecodeStep


class InferenceLayer(ForwardPass, frozen=True, kw_only=True):
    """The pass of a layer, with its cache before (`given`) and after it (`kept`).

    `named`: tensors to which the model's loop still refers when the next layer runs. `casts`:
    weights that autocast has cast, and keeps until the model's forward ends.
    """

    named: tuple[int, ...] = ()
    casts: tuple[int, ...] = ()


def layer_pass(
    setting: BlockSetting, layer: Layer, step: DecodeStep, *, slides: bool = False
) -> InferenceLayer:
    """A layer that adds the tokens of a pass to its cache. `slides`: it has a sliding window."""
    tape = Tape()
    bits = 32 if layer.fp32_residual else setting.bits
    x = tape.value("layer.input", setting.tokens * setting.hidden, bits, grad=False)
    old = () if step.stored is None else tuple(cached_parts(setting, layer, step.stored))
    cache = LayerCache(tape, *old, slides=slides)
    if step.capacity is not None:
        cache = StaticLayerCache(tape, *old, room=step.capacity, over=step.over, rolls=step.rolls)
    y = run_layer(tape, setting, x, layer, masked=step.masked, cache=cache)
    tape.hold(x, *tape.returned)  # the model's loop and the layer's code refer to them
    others = tape.returned if setting.quirks.layer_outputs_named else ()
    named = [v for v in others if v.base != y.base and v.name.startswith("attn")]
    casts = _cached_casts(tape)
    run = inference_pass(tape, x, y, given=cache.old, kept=(*cache.kept, *casts, *named))
    peak = run.moment
    for value in named:  # the layer before has left one
        peak = PeakParts(peak.act + value.bytes, EMPTY, peak.temp)
    first, second = len(cache.kept), len(cache.kept) + len(casts)
    return InferenceLayer(
        moment=peak,
        script=run.script,
        given=run.given,
        kept=run.kept[:first],
        casts=run.kept[first:second],
        named=run.kept[second:],
    )


def _cached_casts(tape: Tape) -> list[Value]:
    """Casts of weights that autocast keeps: without gradients, too, it caches those of weights
    that take one (torch 2.11 autocast_mode.cpp cached_cast).
    """
    return [value for op in tape.ops for value in op.outs if value.cached]


def reorder_pass(setting: BlockSetting, layer: Layer, step: DecodeStep) -> InferenceLayer:
    """The copy of a layer's cache for the beams that continue, first keys, then values
    (cache_utils.py CacheLayerMixin.reorder_cache: index_select).
    """
    tape = Tape()
    before, after = (cached_parts(setting, layer, n) for n in (step.left, step.reordered))
    pairs = [
        (tape.value(f"{name}.old", size, bits, grad=False), new, bits)
        for (name, size, bits), (_, new, _) in zip(before, after, strict=True)
    ]
    old = [value for value, _, _ in pairs]
    copies = [
        tape.op("cache.reordered", value, elements=new, bits=bits) for value, new, bits in pairs
    ]
    none = tape.value("nothing", 0, 8, grad=False)
    run = inference_pass(tape, none, none, given=old, kept=copies)
    script = replace(run.script, entry=-1, exit=-1)
    return InferenceLayer(moment=run.moment, script=script, given=run.given, kept=run.kept)


def cached_parts(
    setting: BlockSetting, layer: Layer, tokens: Num
) -> Iterator[tuple[str, Num, int]]:
    """What one layer caches for `tokens` of each sequence: name, elements, bits."""
    block, rows = layer.mixer, setting.batch * tokens
    if isinstance(block, Attention):
        heads = block.heads if block.expanded else block.kv_heads
        bits = _key_bits(setting, layer) if setting.autocast else setting.bits
        yield "cache.keys", rows * (heads * block.head_dim), bits
        yield "cache.values", rows * (heads * (block.value_dim or block.head_dim)), bits
    elif isinstance(block, LatentAttention):
        yield "cache.latents", rows * block.kv_rank, setting.bits
        yield "cache.rotary", rows * block.rope_dim, setting.bits
    elif isinstance(block, StateSpace):
        yield from state_parts(setting, block)


@remembered(64)
def _key_bits(setting: BlockSetting, layer: Layer) -> int:
    """Bits of a key, and so of a value, that a layer caches: rotary tables in fp32 widen it."""
    tape = Tape()
    setting = replace(setting, batch=1, seq=1, past=0, decoding=False)
    cache = LayerCache(tape)
    x = tape.value("layer.input", setting.hidden, setting.bits, grad=False)
    run_layer(tape, setting, x, layer, masked=False, cache=cache)
    return cache.kept[0].bits


def norm_pass(setting: BlockSetting, arch: Arch) -> ForwardPass:
    """The norm after the layers; the model refers to its input until it returns."""
    tape = Tape()
    bits = 32 if arch.layers[-1].fp32_residual else setting.bits
    x = tape.value("stack.output", setting.tokens * setting.hidden, bits, grad=False)
    out = x if arch.final_norm is None else norm(tape, setting, x, arch.final_norm)
    tape.hold(x)
    return inference_pass(tape, x, out)


def logits_pass(setting: BlockSetting, arch: Arch, rows: Num) -> ForwardPass:
    """The logits of `rows` tokens of each sequence, from the normed output of all tokens.

    generate computes those of the last one (`logits_to_keep`), a plain forward those of all.
    """
    tape = Tape()
    setting = replace(setting, quantization=None)  # bitsandbytes does not quantize the head
    x = tape.value("stack.normed", setting.tokens * setting.hidden, setting.bits, grad=False)
    out = tape.split("logits.rows", x, [("logits.in", setting.batch * rows * setting.hidden)])[0]
    for weight in arch.head_extra:
        if len(weight.dims) == 2:  # OPT-350M projects back to the embedding's width
            out = linear(tape, setting, out, Linear(weight.name, weight.dims[1], weight.dims[0]))
    head = arch.head or Linear(
        "lm_head", arch.embedding[0].dims[1], ("vocab", arch.vocab), share=arch.share
    )
    logits = linear(tape, setting, out, head)
    if arch.logit_softcap:
        scaled = tape.op("logits.scaled", logits)
        logits = tape.op("logits.capped", tape.op("logits.tanh", scaled))
    elif arch.logit_scale:
        logits = tape.op("logits.scaled", logits)
    tape.hold(x)
    return inference_pass(tape, x, logits)
