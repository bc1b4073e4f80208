"""State-space mixers, in plain torch.

transformers 5.17.0 uses the kernels of causal-conv1d and mamba-ssm where they can be loaded, and
torch code otherwise (use_kernel_func_from_hub_with_fallback, modeling_mamba2.py:143,
modeling_jamba.py:237). They are not dependencies of transformers, so a run is assumed to have none;
with them it keeps about a tenth as much.
"""

from __future__ import annotations

from collections.abc import Iterator

from ....ledger.num import Num
from ....models.arch.blocks import StateSpace
from ...autograd.tape import Tape, Value
from .cache import LayerCache
from .ops import add
from .scans import chunk_scan, token_scan
from .setting import BlockSetting


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
