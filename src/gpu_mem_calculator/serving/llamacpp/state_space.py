"""State-space layers as a graph.

llama.cpp b10586 src/models/mamba-base.cpp build_mamba_layer, build_mamba2_layer, and
src/llama-graph.cpp build_rs. Legend: i inner size, n state size, k width of the convolution,
q sequences, t tokens of each.
"""

from __future__ import annotations

from ...model.blocks import Recurrence, StateSpace
from .graph_inputs import GraphBuilder
from .graph_tensors import (
    GraphTensor,
    alike,
    get_rows,
    mul_mat,
    new,
    permute,
    reshape,
    view,
    written,
)

RMS = ("dt_layernorm.weight", "b_layernorm.weight", "c_layernorm.weight")


def row_sizes(mixer: StateSpace | Recurrence) -> tuple[int, int]:
    """Elements that a sequence keeps of a layer: behind the convolution, and of the scan."""
    if isinstance(mixer, Recurrence):
        return mixer.conv_elements, mixer.state_elements
    groups = mixer.groups if mixer.version == 2 else 0
    return (mixer.conv - 1) * (mixer.inner + 2 * groups * mixer.state), mixer.state * mixer.inner


def scanned(site: GraphBuilder, mixer: StateSpace, x: GraphTensor, index: int) -> GraphTensor:
    """One Mamba mixer on its normed input."""
    how = site.how
    q, t = how.sequences, how.tokens // how.sequences
    names = {weight.name for weight in mixer.parameters}
    behind, size = row_sizes(mixer)
    x = reshape(x, x.ne[0], t, q)
    wide = mixer.inner + (2 * mixer.groups * mixer.state if mixer.version == 2 else 0)
    ins = mixer.inner + wide + mixer.heads if mixer.version == 2 else 2 * mixer.inner
    both = mul_mat(site.layer_weight(index, "ssm_in_proj.weight", x.ne[0], ins), x)
    part = view(both, (wide, t, q), (both.nb[1], both.nb[2]))
    each = mixer.inner // mixer.heads
    gate = view(both, (mixer.inner, t, q), both.nb[1:3]) if mixer.version == 1 else (
        view(both, (each, mixer.heads, t, q), (each * 4, *both.nb[1:3])))  # fmt: skip
    conv = convolved(site, index, part, mixer.conv, behind)
    if "conv1d.bias" in names:
        conv = alike("add", conv, site.layer_weight(index, "ssm_conv1d.bias", wide))
    conv = alike("unary", conv)
    parts = _steps(site, mixer, index, conv, both)
    made = _scan(site, mixer, index, parts, size)
    return _gated(site, mixer, index, made, gate, parts[0], conv)


def state_rows(site: GraphBuilder, index: int, name: str, size: int) -> GraphTensor:
    """What each sequence of the batch has kept (build_rs)."""
    q = site.how.sequences
    states = cleared(site, index, name, size)
    rows = site.graph.expand(get_rows(states, copied(site)))
    _rest(site, states, size, index, name, q)
    return rows


def state(site: GraphBuilder, index: int, name: str, size: int) -> GraphTensor:
    """The states of a layer: one row a sequence."""
    return site.cache(index, name, "F32", size, site.how.sequences)


def copied(site: GraphBuilder) -> GraphTensor:
    """Which state each sequence goes on from."""
    q = site.how.sequences
    return site.once("s_copy_main", lambda: view(site.given("s_copy", q), (q,)))


def cleared(site: GraphBuilder, index: int, name: str, size: int) -> GraphTensor:
    """The states of all sequences; nothing is cleared when memory is reserved."""
    states = reshape(state(site, index, name, size), size, site.how.sequences)
    zero = view(states, (0,))
    site.graph.expand(written(zero, zero, op="scale"))
    return states


def _rest(
    site: GraphBuilder, states: GraphTensor, size: int, index: int, name: str, q: int
) -> None:
    """States of sequences that are not in the batch: none when memory is reserved."""
    none = site.once("s_copy_extra", lambda: view(site.given("s_copy", q), (0,)))
    extra = get_rows(states, none)
    target = view(state(site, index, name, size), (size, 0))
    site.graph.expand(written(target, extra, target, op="cpy"))


def convolved(site: GraphBuilder, index: int, x: GraphTensor, conv: int, size: int) -> GraphTensor:
    """Inputs of a convolution behind those that were kept; the last of them are kept next."""
    wide, t, q = x.ne[0], x.ne[1], x.ne[2]
    past = reshape(state_rows(site, index, "r", size), conv - 1, wide, q)
    joined = new("concat", (conv - 1 + t, wide, q), (past, permute(x, 1, 0, 2, 3)))
    last = view(joined, (conv - 1, wide, q), (joined.nb[1], joined.nb[2]))
    target = view(state(site, index, "r", size), (size * q,))
    site.graph.expand(written(target, last, target, op="cpy"))
    made = new("ssm_conv", (wide, t, q), (
        joined, site.layer_weight(index, "ssm_conv1d.weight", conv, wide)))  # fmt: skip
    made.on_gpu = wide % 128 == 0
    return made


def _steps(site: GraphBuilder, mixer: StateSpace, index: int, conv: GraphTensor, both: GraphTensor
           ) -> tuple[GraphTensor, GraphTensor, GraphTensor, GraphTensor]:  # fmt: skip
    """x, time steps, B and C."""
    t, q, n, i = conv.ne[1], conv.ne[2], mixer.state, mixer.inner
    if mixer.version == 2:
        head = i // mixer.heads
        x = view(conv, (head, mixer.heads, t, q), (head * 4, conv.nb[1], conv.nb[2]))
        b, c = (view(conv, (n, mixer.groups, t, q), (n * 4, conv.nb[1], conv.nb[2]))
                for _ in range(2))  # fmt: skip
        dt = view(both, (mixer.heads, t, q), (both.nb[1], both.nb[2]))
        dt = alike("add", new("cont", dt.ne, (dt,)),
                   site.layer_weight(index, "ssm_dt.bias", mixer.heads))  # fmt: skip
        return x, dt, b, c
    weight = site.layer_weight(index, "ssm_x_proj.weight", i, mixer.dt_rank + 2 * n)
    low = mul_mat(weight, conv)
    dt = view(low, (mixer.dt_rank, t, q), (low.nb[1], low.nb[2]))
    b, c = (view(low, (n, 1, t, q), (n * 4, low.nb[1], low.nb[2])) for _ in range(2))
    if RMS[0] in {one.name for one in mixer.parameters}:
        dt, b, c = (_normed(site, one, index, name)
                    for one, name in zip((dt, b, c), ("dt", "b", "c"), strict=True))  # fmt: skip
    dt = mul_mat(site.layer_weight(index, "ssm_dt_proj.weight", mixer.dt_rank, i), dt)
    dt = alike("add", dt, site.layer_weight(index, "ssm_dt.bias", i))
    return reshape(conv, 1, i, t, q), dt, b, c


def _normed(site: GraphBuilder, x: GraphTensor, index: int, name: str) -> GraphTensor:
    made = site.pin(alike("rms_norm", x), index)
    return alike("mul", made, site.layer_weight(index, f"ssm_{name}_norm.weight", x.ne[0]))


def _scan(
    site: GraphBuilder, mixer: StateSpace, index: int, parts: tuple[GraphTensor, ...], size: int
) -> GraphTensor:
    """y and the last states in one tensor."""
    x, dt, b, c = parts
    q = x.ne[3]
    heads, head = (mixer.heads, mixer.inner // mixer.heads) if mixer.version == 2 else (
        mixer.inner, 1)  # fmt: skip
    states = cleared(site, index, "s", size)
    a = site.layer_weight(index, "ssm_a", 1 if mixer.version == 2 else mixer.state, heads)
    shaped = reshape(states, mixer.state, head, heads, q)
    y = new("ssm_scan", (x.numel + size * q,), (shaped, x, dt, a, b, c, copied(site)))
    y.on_gpu = mixer.state in (128, 256) and head % 16 == 0 if mixer.version == 2 else (
        mixer.state == 16 and heads % 128 == 0)  # fmt: skip
    site.graph.expand(y)
    _rest(site, states, size, index, "s", q)
    target = view(state(site, index, "s", size), (size * q,))
    site.graph.expand(written(target, view(y, (size * q,)), target, op="cpy"))
    return y


def _gated(
    site: GraphBuilder,
    mixer: StateSpace,
    index: int,
    y: GraphTensor,
    gate: GraphTensor,
    x: GraphTensor,
    conv: GraphTensor,
) -> GraphTensor:
    """y + D x, times the gate, normed, projected."""
    t, q, i = conv.ne[1], conv.ne[2], mixer.inner
    if mixer.version == 2:
        shown = view(y, (i // mixer.heads, mixer.heads, t, q))
        skipped = alike("mul", x, site.layer_weight(index, "ssm_d", 1, mixer.heads))
    else:
        shown = view(y, (i, t, q))
        skipped = alike("mul", conv, site.layer_weight(index, "ssm_d", i))
    made = alike("glu", new("cont", gate.ne, (gate,)), alike("add", shown, skipped))
    if mixer.version == 2 and "norm.weight" in {one.name for one in mixer.parameters}:
        made = site.pin(alike("rms_norm", reshape(made, i // mixer.groups, mixer.groups, t, q)),
                        index)  # fmt: skip
        gain = site.layer_weight(index, "ssm_norm.weight", i // mixer.groups, mixer.groups)
        made = alike("mul", made, gain)
    hidden = site.arch.hidden
    weight = site.layer_weight(index, "ssm_out_proj.weight", i, hidden)
    return reshape(mul_mat(weight, reshape(made, i, t, q)), hidden, t * q)
