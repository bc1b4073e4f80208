"""State-space mixers and their scans, in plain torch.

transformers 5.17.0 uses the kernels of causal-conv1d and mamba-ssm where they can be loaded, and
torch code otherwise (use_kernel_func_from_hub_with_fallback, modeling_mamba2.py:143,
modeling_jamba.py:237). They are not dependencies of transformers, so a run is assumed to have none;
with them it keeps about a tenth as much.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ....ledger.num import Bytes, Num, round_up, sized
from ....models.arch.blocks import StateSpace
from ...autograd.tape import Tape, Value
from .cache import LayerCache
from .ops import add, multiply, scale
from .setting import BlockSetting


def token_scan(
    tape: Tape, setting: BlockSetting, into: Value, active: Value, block: StateSpace
) -> Value:
    """mamba_selective_scan, token by token (modeling_jamba.py:316).

    Every token's state is saved, in fp32 for the next one and in the activations' dtype for the
    output. The backward of a token's slice allocates zeros for the whole sequence, then adds them.
    """
    tokens, inner = setting.tokens, block.inner
    rows = tape.op("ssm.rows", active)
    low_width = block.dt_rank + 2 * block.state
    low = tape.op("ssm.x_proj", rows, elements=tokens * low_width, saves=(rows,))
    norms = tape.value("ssm.norms", tokens * low_width * 4, 16, grad=False)
    biased = tape.op("ssm.dt_proj", low, elements=tokens * inner, saves=(norms,))
    biased = tape.cast(biased, 32) if setting.autocast else biased  # softplus is in fp32
    steps = tape.op("ssm.softplus", biased, saves=(biased,), save_out=True)
    size = tokens * (inner * block.state)
    product = tape.op("ssm.a_dt", steps, elements=size, bits=32, saves=(steps,))
    decay = tape.op("ssm.decay", product, save_out=True)
    drive = tape.op("ssm.dt_b", steps, elements=size, bits=32, saves=(steps,))
    input32 = tape.op("ssm.input", active, bits=32)
    update = tape.op("ssm.update", drive, input32, saves=(drive, input32), back_temp=drive.bytes)
    states = tape.value("ssm.states", size - setting.batch * (inner * block.state), 32, grad=False)
    narrow = tape.value("ssm.states.to", size, active.bits, grad=False)
    scanned = tape.op(
        "ssm.scanned",
        decay,
        update,
        elements=tokens * inner,
        bits=active.bits,
        saves=(decay, states, narrow),
        back_temp=decay.bytes,
    )
    tape.hold(drive, decay, update, biased)
    work = (input32.bytes, input32.bytes)
    skip = tape.op("ssm.skip", active, bits=32, saves=(active,), back_temp=work)
    total = add(tape, scanned, skip, "ssm.total")
    gate = tape.op("ssm.gate", into, elements=tokens * inner, saves=(into,))
    return tape.cast(multiply(tape, total, gate, "ssm.gated"), active.bits)


class ScanChunks(NamedTuple):
    """Elements of the tensors of a chunked scan, with their shapes."""

    values: Num  # (b, s, heads, head_dim)
    states: Num  # (b, s, heads, state)
    area: Num  # (b, chunks, chunk, chunk, heads)
    ends: Num  # (b, chunks + 1, heads, head_dim, state)


def chunks(setting: BlockSetting, block: StateSpace) -> ScanChunks:
    """The sizes of a block's scan, with the sequence rounded up to whole chunks."""
    size = block.chunk or 256
    length = round_up(setting.seq, size)
    rows = setting.batch * length
    return ScanChunks(
        values=rows * block.inner,
        states=rows * (block.heads * block.state),
        area=rows * (size * block.heads),
        ends=setting.batch * (length // size + 1) * (block.inner * block.state),
    )


def chunk_scan(
    tape: Tape, setting: BlockSetting, into: Value, active: Value, block: StateSpace
) -> Value:
    """mamba2_chunk_scan (modeling_mamba2.py:262) and the gated norm after it.

    Sums of products are taken over tensors with one more dimension: for C · B it is the state, for
    M · x the head. Backward allocates such a tensor for both factors.
    """
    size, head = chunks(setting, block), block.inner // block.heads
    input32 = tape.op("ssm.input", active, elements=setting.tokens * block.inner, bits=32)
    skip = tape.op("ssm.skip", input32, elements=size.values)  # D times the padded input
    keys = tape.op("ssm.b", active, elements=size.states, bits=32)
    queries = tape.op("ssm.c", active, elements=size.states, bits=32)
    padded = tape.value("ssm.padded", size.values, 32, grad=False)
    values = tape.op("ssm.x_dt", input32, elements=size.values, saves=(input32, padded))
    decay = tape.value("ssm.decay", size.area, 32, grad=False)
    products = sized(size.area * block.state, 32)
    scores = _summed(tape, "ssm.scores", queries, keys, size.area, products)
    masked = tape.op(
        "ssm.masked", scores, saves=(scores, decay), back_temp=(scores.bytes, scores.bytes)
    )
    products = sized(size.area * head, 32)
    inside = _summed(tape, "ssm.inside", masked, values, size.values, products)
    across = _chunk_states(tape, keys, queries, values, size, block.state)
    total = add(tape, add(tape, inside, across, "ssm.output"), skip, "ssm.total")
    return _gated_norm(tape, setting, into, total, block)


def _summed(
    tape: Tape, name: str, left: Value, right: Value, elements: Num, products: Bytes
) -> Value:
    """The sum of products over one more dimension; `products`: bytes of that tensor."""
    return tape.op(
        name,
        left,
        right,
        elements=elements,
        saves=(left, right),
        temp=products,
        back_temp=(products, products),
    )


def _chunk_states(
    tape: Tape, keys: Value, queries: Value, values: Value, size: ScanChunks, state: int
) -> Value:
    """The states at the ends of chunks, and what the tokens of later chunks read of them."""
    products = values.bytes * state
    decayed = tape.op("ssm.b_decay", keys)
    ends = _summed(tape, "ssm.ends", decayed, values, size.ends, products)
    joined = tape.op("ssm.joined", ends, save_out=True)
    states = tape.op("ssm.new_states", joined, save_out=True)
    output = _summed(tape, "ssm.read", queries, states, size.values, products)
    return tape.op("ssm.across", output, saves=(output,))


def _gated_norm(
    tape: Tape, setting: BlockSetting, into: Value, total: Value, block: StateSpace
) -> Value:
    """MambaRMSNormGated (modeling_mamba2.py:105), in fp32 throughout."""
    tokens = setting.tokens
    gate32 = tape.op("ssm.gate.to", into, elements=tokens * block.inner, bits=32)
    gate = tape.op("ssm.gate", gate32, saves=(gate32,))
    gated = multiply(tape, total, gate, "ssm.gated")
    squares = tape.op("ssm.pow", gated, saves=(gated,), back_temp=(gated.bytes, gated.bytes))
    rsqrt = tape.op("ssm.rsqrt", squares, elements=tokens, save_out=True, back_temp=gated.bytes)
    normed = tape.op("ssm.normed", gated, rsqrt, saves=(gated, rsqrt), back_temp=gated.bytes)
    weighted = tape.op("ssm.weighted", normed, saves=(normed,), back_temp=normed.bytes)
    return scale(tape, tape.cast(weighted, setting.bits), "ssm.out")


def state_space(
    tape: Tape, setting: BlockSetting, x: Value, block: StateSpace, cache: LayerCache | None = None
) -> Value:
    """Record a Mamba-2 mixer, or Jamba's Mamba-1."""
    channels = block.inner + (2 * block.groups * block.state if block.version == 2 else 0)
    width = block.inner + channels + (block.heads if block.version == 2 else 0)
    into = project(tape, setting, x, block, "in_proj", width)
    rows = setting.batch * (setting.seq + block.conv - 1)
    if cache is not None:
        cache.states(tape, into, state_parts(setting, block))
    if setting.decoding:
        return _one_token(tape, setting, x, into, block)
    conv_in = into
    if setting.autocast and block.version == 1:  # .to(weight.dtype), modeling_jamba.py:248
        conv_in = tape.op("ssm.conv_input", into, elements=setting.tokens * channels)
    convolved = tape.op("ssm.convolved", conv_in, elements=rows * channels, saves=(conv_in,))
    active = tape.op(
        "ssm.active", convolved, elements=setting.tokens * channels, saves=(convolved,)
    )
    scan = chunk_scan if block.version == 2 else token_scan
    mixed = scan(tape, setting, into, active, block)
    return project(tape, setting, mixed, block, "out_proj", x.elements() // setting.tokens)


def state_parts(setting: BlockSetting, block: StateSpace) -> Iterator[tuple[str, Num, int]]:
    """Name, elements and bits of a mixer's states, whose size is the same for any sequence length:
    the convolution's last inputs, and one state per channel (cache_utils.py LinearAttentionLayer).
    """
    channels = block.inner + (2 * block.groups * block.state if block.version == 2 else 0)
    yield "cache.conv", setting.batch * channels * block.conv, setting.bits
    yield "cache.state", setting.batch * block.inner * block.state, 32


def _one_token(
    tape: Tape, setting: BlockSetting, x: Value, into: Value, block: StateSpace
) -> Value:
    """One step of the recurrence: the decayed state, the update, and their sum, all in fp32."""
    size = setting.batch * (block.inner * block.state)
    decay = tape.op("ssm.decay", into, elements=size, bits=32)
    added = tape.op("ssm.added", into, elements=size, bits=32)
    state = add(tape, tape.op("ssm.decayed", decay), added, "ssm.sum")
    mixed = tape.op("ssm.read", state, elements=setting.batch * block.inner, bits=setting.bits)
    tape.hold(into, decay, added)
    return project(tape, setting, mixed, block, "out_proj", x.elements() // setting.tokens)


def _weight(tape: Tape, setting: BlockSetting, block: StateSpace, name: str) -> Value:
    """A projection's weight, by its name in the block, cast to the matmul's dtype."""
    weight = next(w for w in block.parameters if w.name == f"{name}.weight")
    value = tape.param(weight.name, weight.numel, setting.weight_bits, grad=not setting.frozen)
    return tape.cast(value, setting.matmul_bits)


def project(
    tape: Tape, setting: BlockSetting, x: Value, block: StateSpace, name: str, width: Num
) -> Value:
    """Record one projection of the mixer, to `width` elements per token."""
    weight, x = _weight(tape, setting, block, name), tape.cast(x, setting.matmul_bits)
    return tape.op(
        f"ssm.{name}",
        x,
        weight,
        elements=setting.tokens * width,
        bits=setting.matmul_bits,
        saves=(x, weight),
    )
