"""Activation functions, as in transformers 5.17.0 activations.py and in the families' own code."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ....ledger.num import EMPTY, Bytes, sized
from ...autograd.events import BlockEvents, EventRecorder
from .activation_names import GPT_OSS, SAVES_INPUT
from .ops import add, multiply, scale

if TYPE_CHECKING:
    from ...autograd.tape import Tape, Value
    from .setting import BlockSetting


def activation(tape: Tape, setting: BlockSetting, x: Value, name: str) -> Value:
    """Record an activation function by its name in the config: one kernel, or several in Python."""
    if name in COMPOSED:
        return COMPOSED[name](tape, setting, x)
    saves_input = SAVES_INPUT[name]
    return tape.op("act", x, saves=(x,) if saves_input else (), save_out=not saves_input)


def gelu_new(tape: Tape, setting: BlockSetting, x: Value) -> Value:
    """0.5 x (1 + tanh(c (x + 0.044715 x³))): activations.py:59, which saves each step.

    Under autocast torch.pow runs in fp32 (autocast_mode.h), and so do the operations after it.
    """
    half = scale(tape, x, "act.half")
    base = tape.cast(x, 32) if setting.autocast else x
    cube = tape.op("act.cube", base, saves=(base,), back_temp=(base.bytes, base.bytes))
    inner = add(tape, x, scale(tape, cube, "act.cubed"), "act.inner")
    tanh = tape.op("act.tanh", scale(tape, inner, "act.scaled"), save_out=True)
    one = tape.op("act.one", tanh, passes=True)
    out = multiply(tape, half, one, "act")
    tape.hold(x)  # an argument lives until the call returns
    return out


def gelu_fast(tape: Tape, setting: BlockSetting, x: Value) -> Value:
    """0.5 x (1 + tanh(x c (1 + 0.044715 x x))): activations.py:106."""
    half = scale(tape, x, "act.half")
    left = scale(tape, x, "act.left")
    square = multiply(tape, scale(tape, x, "act.small"), x, "act.square")
    inner = multiply(tape, left, tape.op("act.more", square, passes=True), "act.inner")
    one = tape.op("act.one", tape.op("act.tanh", inner, save_out=True), passes=True)
    return multiply(tape, half, one, "act")


def gelu_python(tape: Tape, setting: BlockSetting, x: Value) -> Value:
    """x 0.5 (1 + erf(x / √2)): activations.py:82."""
    half = scale(tape, x, "act.half")
    divided = scale(tape, x, "act.divided")
    erf = tape.op("act.erf", divided, saves=(divided,), back_temp=(x.bytes, x.bytes))
    return multiply(tape, half, tape.op("act.one", erf, passes=True), "act")


def quick_gelu(tape: Tape, setting: BlockSetting, x: Value) -> Value:
    """x · sigmoid(1.702 x): activations.py:117."""
    sigmoid = tape.op("act.sigmoid", scale(tape, x, "act.scaled"), save_out=True)
    return multiply(tape, x, sigmoid, "act")


def squared_relu(tape: Tape, setting: BlockSetting, x: Value) -> Value:
    """relu(x)²: activations.py:203; both steps save relu(x), under autocast the square in fp32."""
    positive = tape.op("act.relu", x, save_out=True)
    base = tape.cast(positive, 32) if setting.autocast else positive
    out = tape.op("act", base, saves=(base,), back_temp=(base.bytes, base.bytes))
    tape.hold(x, positive)  # named until the function returns
    return out


def xielu(tape: Tape, setting: BlockSetting, x: Value) -> Value:
    """XIELUActivation._xielu_python (activations.py:281); its two coefficients take gradients.

    They have one dimension, so under autocast a product with one of them is in fp32; expm1 runs
    in fp32 there, too (autocast_mode.h).
    """
    bits = max(x.bits, setting.weight_bits)
    source = tape.value("act.zero", 0, 8, grad=False)
    above = tape.op("act.above", source, elements=x.elements())
    learns = not setting.frozen  # a product with a number that does not keeps nothing
    work = x.bytes * bits // x.bits if learns else EMPTY
    slope = tape.op("act.slope", x, bits=bits, saves=(x,) if learns else (), back_temp=work)
    square = multiply(tape, slope, x, "act.square")
    right = add(tape, square, scale(tape, x, "act.beta"), "act.right")
    low = tape.op("act.low", x, saves=(x,), back_temp=sized(x.elements(), 8))
    base = tape.cast(low, 32) if setting.autocast else low
    power = tape.op("act.expm1", base, save_out=True)
    bent = add(tape, power, x, "act.bent")
    kept, work = (bent,) if learns else (), bent.bytes if learns else EMPTY
    bent = tape.op("act.bent_slope", bent, bits=bits, saves=kept, back_temp=work)
    left = add(tape, bent, scale(tape, x, "act.beta_again"), "act.left")
    out = tape.op("act", right, left, above, saves=(above,))
    tape.hold(x)  # named until the function returns
    return out


def bloom_gelu(tape: Tape, setting: BlockSetting, x: Value) -> Value:
    """GeLUFunction (modeling_bloom.py:141) saves its input and recomputes everything, without a
    graph: x * 0.5 * (1 + tanh(0.8 x (1 + 0.04 x x))).
    """
    nothing = tape.value("act.nothing", 0, x.bits, grad=False)
    half = tape.op("act.half", nothing, elements=x.elements())
    tanh = _bloom_tanh(tape, nothing, x)
    one = tape.op("act.one", tanh)
    script, most = _bloom_back(x.bytes), x.bytes * 4  # 5 at once, before the gradient exists
    return tape.op("act", x, half, one, saves=(x,), back_temp=most, back_script=script)


def _bloom_tanh(tape: Tape, nothing: Value, x: Value) -> Value:
    left = tape.op("act.left", nothing, elements=x.elements())
    small = tape.op("act.small", nothing, elements=x.elements())
    more = tape.op("act.more", tape.op("act.square", small))
    return tape.op("act.tanh", tape.op("act.inner", left, more))


def _bloom_back(size: Bytes) -> BlockEvents:
    """What bloom_gelu_back (modeling_bloom.py:123) allocates before its result, each of `size`
    bytes: tanh as in forward, then its derivative.
    """
    recorder = EventRecorder()

    def step(*freed: int) -> int:
        tensor = recorder.weight(size)
        recorder.over(freed)
        return tensor

    left = step()
    tanh = step(step(left, step(step(step()))))
    half = step()
    slope = step(step())
    slope = step(slope, step(step(step())))
    product = step(half, slope)
    return recorder.forward_only((tanh, step(product, step(step()))))


COMPOSED: dict[str, Callable[[Tape, BlockSetting, Value], Value]] = {
    "gelu_new": gelu_new,
    "gelu_accurate": gelu_new,
    "gelu_fast": gelu_fast,
    "gelu_python": gelu_python,
    "quick_gelu": quick_gelu,
    "relu2": squared_relu,
    "bloom_gelu": bloom_gelu,
    "xielu": xielu,
}


def gated(tape: Tape, setting: BlockSetting, gate: Value, up: Value, name: str) -> Value:
    """Record act(gate) · up; gpt-oss clamps both."""
    if name == GPT_OSS:
        return _clamped_gate(tape, gate, up)
    return multiply(tape, activation(tape, setting, gate, name), up, "mlp.product")


def _clamped_gate(tape: Tape, gate: Value, up: Value) -> Value:
    """(clamp(up) + 1) · clamp(gate) · sigmoid(1.702 clamp(gate)), modeling_gpt_oss.py:86."""
    low = tape.op("act.gate", gate, saves=(gate,))
    bound = tape.op("act.up", up, saves=(up,))
    scaled = scale(tape, low, "act.scaled")
    glu = multiply(tape, low, tape.op("act.sigmoid", scaled, save_out=True), "act.glu")
    out = multiply(tape, tape.op("act.one", bound, passes=True), glu, "mlp.product")
    tape.hold(gate, up, low, bound)
    return out
