"""State-space mixers: in torch alone, or with the kernels of causal-conv1d and mamba-ssm 2.2.

transformers 5.17.0 takes the kernels where they can be loaded and torch code otherwise
(use_kernel_func_from_hub_with_fallback, modeling_mamba2.py:143, modeling_jamba.py:237). They are
not among what transformers needs, so a run is taken to do without: `Setting.fused_scan` is False.
The kernels keep a tenth as much.
"""

from __future__ import annotations

from ...ledger.num import Num, ceil_div
from ...model.blocks import StateSpace
from ..tape import Tape, Value
from .ops import Setting
from .scans import chunk_scan, token_scan


def state_space(tape: Tape, setting: Setting, x: Value, block: StateSpace) -> Value:
    """A Mamba-2 mixer, or Jamba's Mamba-1."""
    if setting.fused_scan:
        return (_mamba2 if block.version == 2 else _mamba1)(tape, setting, x, block)
    channels = block.inner + (2 * block.groups * block.state if block.version == 2 else 0)
    width = block.inner + channels + (block.heads if block.version == 2 else 0)
    into = project(tape, setting, x, block, "in_proj", width)
    rows = setting.batch * (setting.seq + block.conv - 1)
    convolved = tape.op("ssm.convolved", into, elements=rows * channels, saves=(into,))
    active = tape.op(
        "ssm.active", convolved, elements=setting.tokens * channels, saves=(convolved,)
    )
    scan = chunk_scan if block.version == 2 else token_scan
    mixed = scan(tape, setting, into, active, block)
    return project(tape, setting, mixed, block, "out_proj", x.elements() // setting.tokens)


def _weight(tape: Tape, setting: Setting, block: StateSpace, name: str) -> Value:
    """A projection's weight, by its name in the block."""
    found = next(w for w in block.parameters if w.name == f"{name}.weight")
    value = tape.param(found.name, found.numel, setting.weight_bits, grad=not setting.frozen)
    if setting.weight_bits == setting.matmul_bits:
        return value
    return tape.op(f"{name}.to", value, bits=setting.matmul_bits)


def project(
    tape: Tape, setting: Setting, x: Value, block: StateSpace, name: str, width: Num
) -> Value:
    """One linear map of the mixer."""
    x, weight = tape.cast(x, setting.matmul_bits), _weight(tape, setting, block, name)
    return tape.op(
        f"ssm.{name}", x, weight, elements=setting.tokens * width, bits=setting.matmul_bits,
        saves=(x, weight),
    )  # fmt: skip


def _mamba2(tape: Tape, setting: Setting, x: Value, block: StateSpace) -> Value:
    """mamba_split_conv1d_scan_combined (modeling_mamba2.py:459, mamba-ssm ssd_combined.py).

    The function keeps the projection, the scan's output and one number a token for its norm; the
    convolution, the time steps, the gate, the chunks' states and the input of its last
    projection are made again in backward.
    """
    tokens, bits = setting.tokens, setting.matmul_bits
    channels = block.inner + 2 * block.groups * block.state
    into = project(tape, setting, x, block, "in_proj", block.inner + channels + block.heads)
    again = tokens * channels * bits // 8 + _states(setting, block, block.chunk or 256)
    rstd = tape.value("ssm.rstd", tokens * block.groups, 32, grad=False)
    scanned = tape.op(
        "ssm.scanned", into, elements=tokens * block.inner, saves=(into, rstd), save_out=True,
        temp=again, back_temp=2 * again,
    )  # fmt: skip
    out = _weight(tape, setting, block, "out_proj")
    return tape.op("ssm.out_proj", scanned, out, elements=x.elements(), bits=bits)


def _mamba1(tape: Tape, setting: Setting, x: Value, block: StateSpace) -> Value:
    """JambaMambaMixer.forward (modeling_jamba.py:497) with causal_conv1d_fn and selective_scan_fn.

    The scan keeps its input, the time steps, B and C, its output before the gate, the gate, and
    the state behind every 2048 tokens (mamba-ssm selective_scan_interface.py SelectiveScanFn).
    Both projections behind a transposition copy their input.
    """
    tokens, inner = setting.tokens, block.inner
    into = project(tape, setting, x, block, "in_proj", 2 * inner)
    convolved = tape.op("ssm.convolved", into, elements=tokens * inner, saves=(into,))
    rows = tape.op("ssm.rows", convolved)
    low = project(tape, setting, rows, block, "x_proj", block.dt_rank + 2 * block.state)
    normed = tape.op("ssm.normed", low, saves=(low,), save_out=True)
    steps = project(tape, setting, normed, block, "dt_proj", inner)
    states = tape.value("ssm.states", _states(setting, block, 2048) // 2, 32, grad=False)
    kept = (convolved, steps, normed, into, states)
    scanned = tape.op("ssm.scanned", convolved, steps, into, elements=tokens * inner,
                      saves=kept, save_out=True)  # fmt: skip
    opened = tape.op("ssm.opened", tape.op("ssm.gated", scanned))
    return project(tape, setting, opened, block, "out_proj", x.elements() // tokens)


def _states(setting: Setting, block: StateSpace, chunk: int) -> Num:
    """fp32 states, one for each chunk."""
    return setting.batch * ceil_div(setting.seq, chunk) * (block.inner * block.state * 4)
