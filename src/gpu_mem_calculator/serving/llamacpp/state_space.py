"""State-space layers in the compute graph.

llama.cpp b10586 src/models/mamba-base.cpp build_mamba_layer, build_mamba2_layer, and
src/llama-graph.cpp build_rs. Legend: i inner size, n state size, k width of the convolution,
q sequences, t tokens of each.
"""

from __future__ import annotations

from ...models.arch.blocks import Recurrence, StateSpace
from . import graph_tensors as ggml
from .graph_inputs import GraphBuilder
from .graph_tensors import GraphTensor, op_like, reshape, view, write_into

RMS = ("dt_layernorm.weight", "b_layernorm.weight", "c_layernorm.weight")


def row_sizes(mixer: StateSpace | Recurrence) -> tuple[int, int]:
    """Elements of a layer's state for one sequence: of the convolution, and of the scan."""
    if isinstance(mixer, Recurrence):
        return mixer.conv_elements, mixer.state_elements
    groups = mixer.groups if mixer.version == 2 else 0
    return (mixer.conv - 1) * (mixer.inner + 2 * groups * mixer.state), mixer.state * mixer.inner


def state_space(builder: GraphBuilder, mixer: StateSpace, x: GraphTensor) -> GraphTensor:
    """A Mamba mixer's output for x, which is the norm's output."""
    setting = builder.setting
    q, t = setting.sequences, setting.tokens // setting.sequences
    names = {weight.name for weight in mixer.parameters}
    conv_size, size = row_sizes(mixer)
    x = reshape(x, x.ne[0], t, q)
    channels = mixer.inner + (2 * mixer.groups * mixer.state if mixer.version == 2 else 0)
    ins = mixer.inner + channels + mixer.heads if mixer.version == 2 else 2 * mixer.inner
    fused = builder.product("ssm_in_proj.weight", ins, x)
    part = view(fused, (channels, t, q), (fused.nb[1], fused.nb[2]))
    each = mixer.inner // mixer.heads
    gate = view(fused, (mixer.inner, t, q), fused.nb[1:3])
    if mixer.version == 2:
        gate = view(fused, (each, mixer.heads, t, q), (each * 4, *fused.nb[1:3]))
    conv = convolve(builder, part, mixer.conv, conv_size)
    if "conv1d.bias" in names:
        conv = op_like("add", conv, builder.layer_weight("ssm_conv1d.bias", channels))
    conv = op_like("unary", conv)
    parts = _scan_inputs(builder, mixer, conv, fused)
    out = _scan(builder, mixer, parts, size)
    return _output(builder, mixer, out, gate, parts[0], conv)


def state_rows(builder: GraphBuilder, name: str, size: int) -> GraphTensor:
    """The states of the sequences of the batch (build_rs)."""
    states = all_states(builder, name, size)
    rows = builder.graph.expand(ggml.get_rows(states, state_indices(builder)))
    _copy_other_states(builder, states, size, name)
    return rows


def state(builder: GraphBuilder, name: str, size: int) -> GraphTensor:
    """The states of a layer in the cache: one row for each sequence."""
    return builder.cache(name, "F32", size, builder.setting.sequences)


def state_indices(builder: GraphBuilder) -> GraphTensor:
    """The index of the state from which each sequence continues."""
    q = builder.setting.sequences
    return builder.once("s_copy_main", lambda: view(builder.input_tensor("s_copy", q), (q,)))


def all_states(builder: GraphBuilder, name: str, size: int) -> GraphTensor:
    """The states of all sequences, after the op that clears new ones: none at reservation."""
    states = reshape(state(builder, name, size), size, builder.setting.sequences)
    zero = view(states, (0,))
    builder.graph.expand(write_into(zero, zero, op="scale"))
    return states


def _copy_other_states(builder: GraphBuilder, states: GraphTensor, size: int, name: str) -> None:
    """Copy the states of sequences outside the batch: none at reservation."""
    q = builder.setting.sequences
    none = builder.once("s_copy_extra", lambda: view(builder.input_tensor("s_copy", q), (0,)))
    extra = ggml.get_rows(states, none)
    target = view(state(builder, name, size), (size, 0))
    builder.graph.expand(write_into(target, extra, target, op="cpy"))


def convolve(builder: GraphBuilder, x: GraphTensor, conv: int, size: int) -> GraphTensor:
    """The convolution of x and the inputs before it; the last inputs are stored in the state."""
    channels, t, q = x.ne[0], x.ne[1], x.ne[2]
    past = reshape(state_rows(builder, "r", size), conv - 1, channels, q)
    inputs = (past, ggml.permute(x, 1, 0, 2, 3))
    joined = ggml.new_op("concat", (conv - 1 + t, channels, q), inputs)
    last = view(joined, (conv - 1, channels, q), (joined.nb[1], joined.nb[2]))
    target = view(state(builder, "r", size), (size * q,))
    builder.graph.expand(write_into(target, last, target, op="cpy"))
    weight = builder.layer_weight("ssm_conv1d.weight", conv, channels)
    out = ggml.new_op("ssm_conv", (channels, t, q), (joined, weight))
    out.on_gpu = channels % 128 == 0
    return out


def _scan_inputs(
    builder: GraphBuilder, mixer: StateSpace, conv: GraphTensor, fused: GraphTensor
) -> tuple[GraphTensor, GraphTensor, GraphTensor, GraphTensor]:
    """The inputs of the scan: x, time steps, B and C."""
    t, q, n, i = conv.ne[1], conv.ne[2], mixer.state, mixer.inner
    if mixer.version == 2:
        head, outer = i // mixer.heads, conv.nb[1:3]
        x = view(conv, (head, mixer.heads, t, q), (head * 4, *outer))
        b, c = (view(conv, (n, mixer.groups, t, q), (n * 4, *outer)) for _ in range(2))
        dt = ggml.contiguous(view(fused, (mixer.heads, t, q), fused.nb[1:3]))
        return x, op_like("add", dt, builder.layer_weight("ssm_dt.bias", mixer.heads)), b, c
    low = builder.product("ssm_x_proj.weight", mixer.dt_rank + 2 * n, conv)
    dt = view(low, (mixer.dt_rank, t, q), (low.nb[1], low.nb[2]))
    b, c = (view(low, (n, 1, t, q), (n * 4, low.nb[1], low.nb[2])) for _ in range(2))
    if RMS[0] in {parameter.name for parameter in mixer.parameters}:
        inputs = zip((dt, b, c), ("dt", "b", "c"), strict=True)
        dt, b, c = (_apply_norm(builder, x, name) for x, name in inputs)
    dt = builder.product("ssm_dt_proj.weight", i, dt)
    dt = op_like("add", dt, builder.layer_weight("ssm_dt.bias", i))
    return reshape(conv, 1, i, t, q), dt, b, c


def _apply_norm(builder: GraphBuilder, x: GraphTensor, name: str) -> GraphTensor:
    out = builder.pin(op_like("rms_norm", x))
    return op_like("mul", out, builder.layer_weight(f"ssm_{name}_norm.weight", x.ne[0]))


def _scan(
    builder: GraphBuilder, mixer: StateSpace, parts: tuple[GraphTensor, ...], size: int
) -> GraphTensor:
    """The scan: y and the last states in one tensor."""
    x, dt, b, c = parts
    q, second = x.ne[3], mixer.version == 2
    heads, head = (mixer.heads, mixer.inner // mixer.heads) if second else (mixer.inner, 1)
    states = all_states(builder, "s", size)
    a = builder.layer_weight("ssm_a", 1 if second else mixer.state, heads)
    shaped = reshape(states, mixer.state, head, heads, q)
    inputs = (shaped, x, dt, a, b, c, state_indices(builder))
    y = ggml.new_op("ssm_scan", (x.numel + size * q,), inputs)
    y.on_gpu = mixer.state == 16 and heads % 128 == 0
    if second:
        y.on_gpu = mixer.state in (128, 256) and head % 16 == 0
    builder.graph.expand(y)
    _copy_other_states(builder, states, size, "s")
    target = view(state(builder, "s", size), (size * q,))
    builder.graph.expand(write_into(target, view(y, (size * q,)), target, op="cpy"))
    return y


def _output(
    builder: GraphBuilder,
    mixer: StateSpace,
    y: GraphTensor,
    gate: GraphTensor,
    x: GraphTensor,
    conv: GraphTensor,
) -> GraphTensor:
    """y + D x, times the gate; then the norm and the output projection."""
    t, q, i = conv.ne[1], conv.ne[2], mixer.inner
    if mixer.version == 2:
        y_view = view(y, (i // mixer.heads, mixer.heads, t, q))
        skip = op_like("mul", x, builder.layer_weight("ssm_d", 1, mixer.heads))
    else:
        y_view = view(y, (i, t, q))
        skip = op_like("mul", conv, builder.layer_weight("ssm_d", i))
    out = op_like("glu", ggml.contiguous(gate), op_like("add", y_view, skip))
    if mixer.version == 2 and "norm.weight" in {parameter.name for parameter in mixer.parameters}:
        groups = reshape(out, i // mixer.groups, mixer.groups, t, q)
        gain = builder.layer_weight("ssm_norm.weight", i // mixer.groups, mixer.groups)
        out = op_like("mul", builder.pin(op_like("rms_norm", groups)), gain)
    out = builder.product("ssm_out_proj.weight", builder.arch.hidden, reshape(out, i, t, q))
    return reshape(out, builder.arch.hidden, t * q)
