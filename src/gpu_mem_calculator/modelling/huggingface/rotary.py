"""Rotary embeddings, as each family applies them (transformers 5.17.0).

Nothing is kept but the tables; what differs is the dtype, the layout of what comes out, and
whether a layer makes tables of its own.
"""

from __future__ import annotations

from ...autograd.tape import Tape, Value
from .ops import add
from .setting import BlockSetting

Tables = tuple[Value, ...]


def rotate(
    tape: Tape,
    setting: BlockSetting,
    x: Value,
    size: tuple[int, int],
    impl: str,
    tables: Tables = (),
) -> Value:
    """x · cos + rotate_half(x) · sin on a part of each head: `size` is (part, whole).

    Under autocast the tables are in the activations' dtype, so the result is too. `float` and
    `complex` work in fp32 (modeling_cohere.py:apply_rotary_pos_emb, modeling_llama4.py:
    apply_rotary_emb), and so does `ernie`, with tables of each layer
    (modeling_ernie4_5.py:apply_rotary_pos_emb). With `joined` the result is always a
    concatenation (modeling_phi3.py:195).
    """
    part, whole = size
    if impl in ("float", "ernie", "complex"):
        return _in_float(tape, x, impl, tables)
    bits = max(x.bits, setting.bits)
    count = x.elements() if part == whole else x.elements() * part // whole
    left = tape.op("rotary.cos", x, elements=count, bits=bits, saves=tables[:1])
    half = tape.op("rotary.half", x, elements=count, temp=count * x.bits // 16)
    right = tape.op("rotary.sin", half, bits=bits, saves=tables[1:])
    turned = add(tape, left, right, "rotary")
    if part == whole and impl != "joined":
        return turned
    return tape.op("rotary.joined", turned, x, elements=x.elements(), bits=bits)


def _in_float(tape: Tape, x: Value, impl: str, tables: Tables) -> Value:
    """The whole head in fp32, cast back."""
    wide = tape.cast(x, 32)
    if impl == "complex":
        turned = tape.op("rotary", wide)
    else:
        left = tape.op("rotary.cos", wide, saves=tables[:1])
        half = tape.op("rotary.half", wide, temp=wide.bytes // 2)
        turned = add(tape, left, tape.op("rotary.sin", half, saves=tables[1:]), "rotary")
    return tape.cast(turned, x.bits)


def layer_tables(tape: Tape, setting: BlockSetting, rotary_dim: int, impl: str) -> Tables:
    """cos and sin with every entry doubled, which these families make in each layer: GLM for q
    and k together (modeling_glm.py:apply_rotary_pos_emb), ERNIE 4.5 in fp32, GPT-J for each of
    q and k (modeling_gptj.py:63).
    """
    if impl not in ("interleaved", "ernie", "gptj"):
        return ()
    names, bits = ("rotary.cos_table", "rotary.sin_table"), 32 if impl == "ernie" else setting.bits
    return tuple(tape.value(n, setting.seq * rotary_dim, bits, grad=False) for n in names)
