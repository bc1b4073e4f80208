"""The weights of a run: trained, frozen, quantized, adapters."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

from ...ledger.num import EMPTY, Bytes, Num, sized
from ...models.arch.adapters import adapted_linears, adapter_parameters, linears
from ...models.arch.arch import Layer
from ...models.arch.blocks import Linear
from ...models.arch.neighbours import Neighbours, neighbours
from ...run.run import Precision, Run
from ..optimizers import OPTIMIZERS

if TYPE_CHECKING:
    from ...run.weights.scheme import MatrixFormat

WIDENED = ("norm", "embed", "lm_head")


def trained_elements(run: Run, layer: Layer) -> Num:
    """Elements of one layer that take a gradient."""
    if run.adapter is None:
        return layer.num_parameters
    return adapter_parameters(layer, run.adapter.rank, run.adapter.targets, dora=run.adapter.dora)


def trained_total(run: Run) -> Num:
    """Elements of the whole model that take a gradient."""
    if run.adapter is None:
        return run.arch.num_parameters + sum(weight.numel for weight in run.trained_tower)
    total: Num = 0
    for layer, _, count in run.arch.runs:
        total = total + trained_elements(run, layer) * count
    return total


def embedding_tensors(run: Run) -> list[int]:
    """Elements of each parameter before the layers: the embedding and its norm."""
    norm = run.arch.embedding_norm
    return [w.numel for w in (*run.arch.embedding, *(norm.weights() if norm else ()))]


def trained_bits(run: Run, precision: Precision) -> int:
    """Bits of the parameters that take a gradient."""
    return precision.weights if run.adapter is None else run.adapter.bits


def largest_trained(run: Run) -> Num:
    """Elements of the largest parameter that takes a gradient."""
    if run.adapter is None:
        return max((run.arch.largest_weight, *(weight.numel for weight in run.trained_tower)))
    return max(
        run.adapter.rank * max(linear.ins[1], linear.outs[1])
        for layer, _, _ in run.arch.runs
        for linear in linears(layer)
        if linear.name.rpartition(".")[2] in run.adapter.targets
    )


def shorter_side(run: Run) -> Num:
    """Elements of the shorter side of the largest parameter; 0 where it is no matrix."""
    arch = run.arch
    stack = (w for layer, _, _ in arch.runs for w in layer.weights())
    largest = max((*arch.embedding, *stack, *arch.after_weights()), key=lambda w: w.numel)
    return min(size for _, size in largest.dims[-2:]) if len(largest.dims) > 1 else 0


def trained_tensors(run: Run) -> int:
    """How many tensors take a gradient; an adapter has two, DoRA three."""
    if run.adapter is None:
        return run.arch.num_weights + len(run.trained_tower)
    targets, each = run.adapter.targets, 3 if run.adapter.dora else 2
    return sum(
        each * count * sum(1 for _ in adapted_linears(layer, targets))
        for layer, _, count in run.arch.runs
    )


def trained_sizes(run: Run) -> tuple[tuple[int, int], ...]:
    """(elements, how many) of the parameters that take a gradient; unrolled, each parameter by
    itself in the model's order.
    """
    arch, adapter = run.arch, run.adapter
    if run.unrolled:
        return tuple((size, 1) for size in _trained_in_order(run))
    if adapter is None:
        stack = [(w.numel, n) for layer, _, n in arch.runs for w in layer.weights()]
        norm = arch.embedding_norm.weights() if arch.embedding_norm is not None else ()
        around = (*run.trained_tower, *arch.embedding, *norm, *arch.after_weights())
        return (*stack, *((w.numel, 1) for w in around))
    sizes: list[tuple[int, int]] = []
    for layer, _, n in arch.runs:
        for linear in adapted_linears(layer, adapter.targets):
            sizes += [(adapter.rank * linear.ins[1], n), (adapter.rank * linear.outs[1], n)]
            sizes += [(linear.outs[1], n)] if adapter.dora else []
    return tuple(sizes)


def _trained_in_order(run: Run) -> Iterator[int]:
    """Elements of each parameter that takes a gradient, in the model's order."""
    if run.adapter is None:
        return (w.numel for w in (*run.trained_tower, *run.arch.weights()))
    return (prod(shape) for shape in trained_shapes(run))


def trained_shapes(run: Run) -> Iterator[tuple[int, ...]]:
    """The shape of each parameter that takes a gradient, in the model's order."""
    if run.adapter is None:
        return (weight.shape for weight in (*run.trained_tower, *run.arch.weights()))
    equal = ((tuple(adapter_shapes(run, layer)), count) for layer, _, count in run.arch.runs)
    return (shape for shapes, count in equal for shape in shapes * count)


def wide_tables(run: Run) -> tuple[int, ...]:
    """Elements of each trained table whose optimizer states have 32 bits: that of an nn.Embedding,
    where the run asks for it (transformers 5.17.0 trainer.py:1285-1296).
    """
    if not run.embedding_states_32bit or run.frozen:
        return ()
    return tuple(weight.numel for weight in run.arch.embedding)


def stepped_shapes(run: Run) -> list[tuple[int, ...]]:
    """The shape of each parameter that takes a gradient, in the order in which the optimizer steps
    them. transformers.Trainer puts those that decay first, which norms and biases do not
    (transformers 5.17.0 trainer.py create_optimizer, get_decay_parameter_names).
    """
    shapes = list(trained_shapes(run))
    if OPTIMIZERS[run.optimizer].decayed_first:
        shapes.sort(key=lambda shape: len(shape) < 2)
    return shapes


def stepped_neighbours(run: Run) -> frozenset[Neighbours]:
    """The neighbours of each parameter, in the order in which the optimizer steps them."""
    if OPTIMIZERS[run.optimizer].decayed_first:
        return neighbours(stepped_shapes(run))
    return frozenset() if run.frozen else run.arch.neighbours


def adapter_shapes(run: Run, layer: Layer) -> Iterator[tuple[int, ...]]:
    """The shapes of one layer's adapters: A, B, DoRA's magnitude (PEFT 0.21.2 lora/layer.py)."""
    assert run.adapter is not None
    for linear in adapted_linears(layer, run.adapter.targets):
        yield (run.adapter.rank, linear.ins[1])
        yield (linear.outs[1], run.adapter.rank)
        if run.adapter.dora:
            yield (linear.outs[1],)


def quantized_bytes(run: Run, linear: Linear) -> Bytes:
    """Bytes of one quantized projection without its bias.

    bitsandbytes 0.50.2. int8 (nn/modules.py Int8Params): 8 bits, and one fp32 scale for each row of
    the weight, that is for each output. nf4 (functional.py quantize_4bit): 4 bits, a code of 16
    fp32 values, and one scale for 64 elements in fp32; with double quantization the scales have
    8 bits, with one fp32 scale for 256 of them and one offset.
    """
    packed = _format(run).stored(1, linear.outs[1], linear.ins[1])
    return sized(run.scaled(sum(size for _, size in packed)), 8)


def _format(run: Run) -> MatrixFormat:
    from ...run.weights.recipes import INT8_ROW, NF4, NF4_PLAIN  # with all formats of servers

    if run.quantization == "int8":
        return INT8_ROW
    return NF4 if run.double_quant else NF4_PLAIN


def tower_tensors(run: Run, precision: Precision) -> Iterator[Bytes]:
    """Bytes of each tensor of the vision tower, in the model's order.

    bitsandbytes packs every nn.Linear but the head (transformers 5.17.0
    integrations/bitsandbytes.py replace_with_bnb_linear); the other parameters keep their
    bits.
    """
    rest = 32 if run.upcast_unquantized else precision.weights
    for weight in run.arch.tower:
        names, sizes = zip(*weight.dims, strict=True)
        linear = len(sizes) == 2 and weight.name.endswith(".weight") and "position" not in names
        if run.quantization is None or not linear:
            yield sized(weight.numel, precision.weights if run.quantization is None else rest)
        else:
            yield from (sized(size, 8) for _, size in _format(run).stored(1, *sizes))


def base_tensors(run: Run, precision: Precision) -> Iterator[Bytes]:
    """Bytes of each parameter of a model that is not quantized, in the model's order."""
    yield from (sized(weight.numel, precision.weights) for weight in run.arch.weights())


def narrows_biases(run: Run) -> bool:
    """Whether the first forward casts biases to 16 bits: those of 4-bit projections, to their
    compute dtype (bitsandbytes 0.50.2 nn/modules.py:634).
    """
    return run.quantization == "nf4" and run.nf4_compute_bits == 16


def widened_elements(run: Run) -> Num:
    """Elements of the weights that are upcast at start-up: all that are not packed, or embedding,
    head and norms.
    """
    if run.quantization is None:
        return sum(weight.numel for weight in run.arch.weights() if is_widened(weight.name))
    linear = (one.numel * count for layer, _, count in run.arch.runs for one in linears(layer))
    return run.arch.num_parameters - sum(linear)


def is_widened(name: str) -> bool:
    """Whether a weight is one that Axolotl upcasts by its name (Axolotl 067b021 loaders/model.py
    _convert_embedding_modules_dtype, loaders/utils.py get_linear_embedding_layers).
    """
    return any(part in name for part in WIDENED)


def base_bytes(run: Run, precision: Precision) -> Bytes:
    """Bytes of the model's parameters without adapters.

    Where parameters that are not quantized are upcast, the biases of 4-bit projections are not.
    """
    arch = run.arch
    if run.quantization is None:
        return sized(arch.num_parameters, precision.weights)
    packed = EMPTY
    elements = biases = 0
    for layer, _, count in arch.runs:
        for linear in linears(layer):
            packed = packed + quantized_bytes(run, linear) * count
            elements += count * linear.numel
            biases += count * linear.bias_numel
    rest = 32 if run.upcast_unquantized else precision.weights
    narrow = biases if narrows_biases(run) else 0
    others = sized(arch.num_parameters - elements - narrow, rest) + sized(narrow, 16)
    return packed + others
