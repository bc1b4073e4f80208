"""One layer and the head in a forward pass that trains nothing (transformers 5.17.0)."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ...ledger.num import Num
from ...model.arch import Arch, Layer
from ...model.blocks import Attention, LatentAttention, Linear, StateSpace
from ..moment import Moment
from ..passes import Step
from ..passing import Pass, passing
from ..tape import Tape
from .cache import Cache, Static
from .layer import run_layer
from .norms import norm
from .ops import linear
from .setting import Setting
from .ssm import state_parts


class Turned(Pass, frozen=True, kw_only=True):
    """A layer at work, its own cache before (`given`) and after (`kept`) included.

    `named` is what the model's loop still names when the next layer runs.
    """

    named: tuple[int, ...] = ()


# What the code of a family names longer than Llama's does, beside what every one names:
# - mixed: a layer names its attention's output to its end (GPT2Block: attn_output)
# - given: the same for its attention's input (StableLmDecoderLayer: hidden_states)
# - normed: of two norms in front of parallel branches both have names (FalconDecoderLayer)
# - late: the second of them runs behind the attention (GPTNeoXLayer)
# - outputs: the model's loop names what the layer before returned, its attention map among it
#   (FalconModel: outputs = block(...))
# - parts: attention names the parts with and without rotary embedding (PhiAttention: query_pass)
# - query: eager attention names its copy of q (BloomAttention: query_layer)
# - inline: the layer itself is the feed-forward block, and its input's name is used again (OPT)
# - positions: positions are made for each sequence even in a plain forward pass (OPT)
# - windows: its windows are cut from a buffer, and its cache is whole (GPT-Neo)
# - masks: a second mask is made that no layer reads (Qwen2-MoE: a window of 0)
# - eager_masks: the same for eager attention alone (Llama 4)
# - wide_tables: rotary tables stay in fp32 (OLMo 2)
# - tables: rotary tables are made for each kind of layer (Gemma 3)
# - early: q has its norm before k is made (Qwen 3)
# - turned: q and k have their norms after the rotary embedding (Hunyuan)
# - scaled: the embedding's output is multiplied by a number (Gemma)
# Whatever the family:
# - grouped: experts stay in grouped matmuls while it decodes (_beam_search and _assisted_decoding
#   know nothing of _optimize_model_for_decode)
NAMES: dict[str, frozenset[str]] = {
    "gpt2": frozenset({"mixed"}),
    "gpt_bigcode": frozenset({"mixed"}),
    "falcon": frozenset({"mixed", "outputs", "normed"}),
    "gpt_neox": frozenset({"late"}),
    "bloom": frozenset({"mixed", "outputs", "query"}),
    "gptj": frozenset({"mixed", "outputs", "parts"}),
    "gpt_neo": frozenset({"mixed", "outputs", "windows"}),
    "phi": frozenset({"mixed", "parts"}),
    "stablelm": frozenset({"mixed", "given", "parts"}),
    "opt": frozenset({"inline", "positions"}),
    "qwen2_moe": frozenset({"masks"}),
    "llama4": frozenset({"mixed", "eager_masks"}),
    "olmo2": frozenset({"wide_tables", "early"}),
    "olmo": frozenset({"wide_tables"}),
    "olmo3": frozenset({"wide_tables", "early", "tables"}),
    "olmoe": frozenset({"early"}),
    "minimax_m2": frozenset({"early"}),
    "hunyuan_v1_dense": frozenset({"turned"}),
    "ernie4_5": frozenset({"wide_tables"}),
    "qwen3": frozenset({"early"}),
    "qwen3_moe": frozenset({"early"}),
    "gemma": frozenset({"scaled"}),
    "gemma2": frozenset({"scaled"}),
    "gemma3_text": frozenset({"tables", "scaled"}),
}


def layer_pass(setting: Setting, layer: Layer, step: Step, *, slides: bool = False) -> Turned:
    """One layer that adds the tokens of a pass to its cache. `slides`: a window does."""
    tape = Tape()
    bits = 32 if layer.fp32_residual else setting.bits
    x = tape.value("layer.input", setting.tokens * setting.hidden, bits, grad=False)
    old = () if step.stored is None else tuple(cached_parts(setting, layer, step.stored))
    cache = Cache(tape, *old, slides=slides)
    if step.room is not None:
        cache = Static(tape, *old, room=step.room, over=step.over, rolls=step.rolls)
    y = run_layer(tape, setting, x, layer, masked=step.masked, cache=cache)
    tape.hold(x, *tape.returned)  # the model's loop and the layer's own code name them
    named = [v for v in tape.returned if "outputs" in setting.names and v.base != y.base
             and v.name.startswith("attn")]  # fmt: skip
    found = passing(tape, x, y, given=cache.old, kept=(*cache.kept, *named))
    moment = found.moment
    for value in named:  # the layer before has left one
        moment = Moment(moment.act + value.bytes, 0, moment.temp)
    count = len(cache.kept)
    return Turned(moment=moment, script=found.script, given=found.given, kept=found.kept[:count],
                named=found.kept[count:])  # fmt: skip


def reorder_pass(setting: Setting, layer: Layer, step: Step) -> Turned:
    """A layer's cache is copied for the beams that go on, one part after the other
    (cache_utils.py CacheLayerMixin.reorder_cache: index_select).
    """
    tape = Tape()
    before, after = (cached_parts(setting, layer, n) for n in (step.left, step.reordered))
    pairs = [(tape.value(f"{name}.old", size, bits, grad=False), new, bits)
             for (name, size, bits), (_, new, _) in zip(before, after, strict=True)]  # fmt: skip
    old = [value for value, _, _ in pairs]
    made = [tape.op("cache.reordered", value, elements=new, bits=bits)
            for value, new, bits in pairs]  # fmt: skip
    none = tape.value("nothing", 0, 8, grad=False)
    found = passing(tape, none, none, given=old, kept=made)
    return Turned(moment=found.moment, script=replace(found.script, entry=-1, exit=-1),
                  given=found.given, kept=found.kept)  # fmt: skip


def cached_parts(setting: Setting, layer: Layer, tokens: Num) -> Iterator[tuple[str, Num, int]]:
    """What one layer caches for so many tokens a sequence: name, elements, bits."""
    block, rows = layer.mixer, setting.batch * tokens
    if isinstance(block, Attention):
        heads = block.heads if block.expanded else block.kv_heads
        yield "cache.keys", rows * (heads * block.head_dim), setting.bits
        yield "cache.values", rows * (heads * (block.value_dim or block.head_dim)), setting.bits
    elif isinstance(block, LatentAttention):
        yield "cache.latents", rows * block.kv_rank, setting.bits
        yield "cache.rotary", rows * block.rope_dim, setting.bits
    elif isinstance(block, StateSpace):
        yield from state_parts(setting, block)


def norm_pass(setting: Setting, arch: Arch) -> Pass:
    """The norm behind the stack, whose input the model names until it returns."""
    tape = Tape()
    bits = 32 if arch.layers[-1].fp32_residual else setting.bits
    x = tape.value("stack.output", setting.tokens * setting.hidden, bits, grad=False)
    out = x if arch.final_norm is None else norm(tape, setting, x, arch.final_norm)
    tape.hold(x)
    return passing(tape, x, out)


def logits_pass(setting: Setting, arch: Arch, rows: Num) -> Pass:
    """The logits of so many tokens a sequence, from the normed output of all of them.

    generate asks for the last one (`logits_to_keep`), a plain forward gets them all.
    """
    tape = Tape()
    setting = replace(setting, quantization=None)  # bitsandbytes leaves the head as it is
    x = tape.value("stack.normed", setting.tokens * setting.hidden, setting.bits, grad=False)
    out = tape.split("logits.rows", x, [("logits.in", setting.batch * rows * setting.hidden)])[0]
    for weight in arch.head_extra:
        if len(weight.dims) == 2:  # OPT-350M projects back to the embedding's width
            out = linear(tape, setting, out, Linear(weight.name, weight.dims[1], weight.dims[0]))
    head = arch.head or Linear("lm_head", arch.embedding[0].dims[1], ("vocab", arch.vocab))
    logits = linear(tape, setting, out, head)
    if arch.logit_softcap:
        scaled = tape.op("logits.scaled", logits)
        logits = tape.op("logits.capped", tape.op("logits.tanh", scaled))
    elif arch.logit_scale:
        logits = tape.op("logits.scaled", logits)
    tape.hold(x)
    return passing(tape, x, logits)
