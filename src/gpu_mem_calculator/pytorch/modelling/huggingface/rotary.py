"""Rotary embeddings, as each family applies them (transformers 5.17.0).

Backward needs only the tables. Families differ in the dtype, in the layout of the result, and in
whether each layer makes its tables.
"""

from __future__ import annotations

from ....ledger.num import Num, sized
from ....models.arch.blocks import RotaryImpl
from ...autograd.tape import Tape, Value
from .ops import add
from .setting import BlockSetting

Tables = tuple[Value, ...]


def rotate(
    tape: Tape,
    setting: BlockSetting,
    x: Value,
    size: tuple[int, int],
    impl: RotaryImpl,
    tables: Tables = (),
) -> Value:
    """x · cos + rotate_half(x) · sin on a part of each head; `size`: elements of (part, head).

    Under autocast the tables are in the activations' dtype, so the result is too. `float` and
    `complex` compute in fp32 (modeling_cohere.py:apply_rotary_pos_emb, modeling_llama4.py:
    apply_rotary_emb), and so does `ernie`, with tables made in each layer
    (modeling_ernie4_5.py:apply_rotary_pos_emb). With `joined` the result is always a
    concatenation (modeling_phi3.py:195). Tables that stay in fp32 make the result fp32
    (modeling_olmo2.py:162). `tables`: those of this layer.
    """
    part, head = size
    if impl in ("float", "ernie", "complex"):
        return _in_float(tape, x, impl, tables)
    bits = 32 if setting.quirks.fp32_rotary_tables else max(x.bits, setting.bits)
    count = x.elements() if part == head else x.elements() * part // head
    left = _times_table(tape, x, bits, "rotary.cos", tables[:1], count)
    right = _times_table(tape, _half_turned(tape, x, count), bits, "rotary.sin", tables[1:])
    rotated = add(tape, left, right, "rotary")
    if part == head and impl != "joined":
        return rotated
    return tape.op("rotary.joined", rotated, x, elements=x.elements(), bits=bits)


def _times_table(
    tape: Tape, x: Value, bits: int, name: str, table: Tables, elements: Num | None = None
) -> Value:
    """x times cos or sin; where the table is wider than x, the gradient is cast after it."""
    elements = x.elements() if elements is None else elements
    if bits == x.bits:
        return tape.op(name, x, elements=elements, saves=table, packs=True)
    wide = sized(elements, bits)
    return tape.op(
        name, x, elements=elements, bits=bits, saves=table, back_temp=wide, casts=x, packs=True
    )


def _half_turned(tape: Tape, x: Value, elements: Num) -> Value:
    """rotate_half: cat((-x2, x1)). The gradient of each half is copied to a tensor of x's size
    (slice_backward), that of the concatenation is two views.
    """
    half = elements // 2
    first, second = (tape.view(f"rotary.x{n}", x, half) for n in (1, 2))
    negative = tape.op("rotary.negative", second)
    return tape.op("rotary.half", negative, first, elements=elements, passes=True)


def _in_float(tape: Tape, x: Value, impl: RotaryImpl, tables: Tables) -> Value:
    """The whole head in fp32, cast back to x's dtype."""
    x32 = tape.cast(x, 32)
    if impl == "complex":
        rotated = tape.op("rotary", x32)
    else:
        left = tape.op("rotary.cos", x32, saves=tables[:1])
        half = _half_turned(tape, x32, x32.elements())
        rotated = add(tape, left, tape.op("rotary.sin", half, saves=tables[1:]), "rotary")
    return tape.cast(rotated, x.bits)


def layer_tables(tape: Tape, setting: BlockSetting, rotary_dim: int, impl: RotaryImpl) -> Tables:
    """cos and sin with every entry doubled, which some families make in each layer: GLM for q
    and k together (modeling_glm.py:apply_rotary_pos_emb), ERNIE 4.5 in fp32, GPT-J for each of
    q and k (modeling_gptj.py:63). Empty for the others.
    """
    if impl not in ("interleaved", "ernie", "gptj"):
        return ()
    names, bits = ("rotary.cos_table", "rotary.sin_table"), 32 if impl == "ernie" else setting.bits
    return tuple(tape.value(n, setting.seq * rotary_dim, bits, grad=False) for n in names)
