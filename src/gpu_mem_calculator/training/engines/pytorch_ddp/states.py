"""Weights, gradients, optimizer states and gradient buckets of a DDP rank: all of them whole."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from msgspec.structs import replace

from ....ledger.ledger import BUCKETS, COMM, GRAD, Entry
from ....ledger.num import EMPTY, holds, sized
from ....ledger.source import code
from ....run.run import Precision, Run
from ...optimizers import OPTIMIZERS
from ...step import states, weights
from ...step.instants import Instants
from ...step.layer_groups import LayerGroups
from ...step.loading import loading_events, pretrained_events
from ...step.states import adapter_entries, buffer_entry, parameter_entry, with_startup
from ...step.weights import trained_bits, trained_sizes
from .startup import broadcast_entry, build_entries
from .stream import gradient_buckets


def state_entries(run: Run, precision: Precision, instants: Instants) -> Iterator[Entry]:
    """Weights, buffers, optimizer states and buckets, and what start-up needs to make them."""
    trained, bits = weights.trained_total(run), trained_bits(run, precision)
    sizes = [sized(n, bits) for n, _ in trained_sizes(run)] if run.unrolled else []
    yield with_startup(run, _base_entry(run, precision, instants))
    if run.arch.tower:
        yield with_startup(run, _tower_entry(run, precision, instants))
    if run.adapter is not None:
        yield from adapter_entries(run, trained, sizes, instants)
    yield with_startup(run, buffer_entry(run, instants))
    yield from states.optimizer_entries(
        run,
        trained,
        bits,
        instants,
        implementation=run.implementation or OPTIMIZERS[run.optimizer].default,
        largest=weights.largest_trained(run),
        side=weights.shorter_side(run),
        tensors=weights.trained_tensors(run),
        sizes=trained_sizes(run),
        neighbours=weights.stepped_neighbours(run),
    )
    yield from build_entries(run, precision)
    yield broadcast_entry(run, sizes)
    size = sized(holds(run.mesh.dp > 1) * trained, bits)
    live = {**states.at_every_instant(instants), "startup.wrapped": 1}
    source = code("torch 2.11 csrc/distributed/c10d/reducer.cpp: flat copies of gradients")
    tensors = partial(gradient_buckets, sizes[::-1])
    yield Entry("gradient buckets", COMM, size, live, source, role=BUCKETS, tensors=tensors)


def _base_entry(run: Run, precision: Precision, instants: Instants) -> Entry:
    """The weights of the model without adapters; quantized ones with the events of their load."""
    tensors = partial(weights.base_tensors, run, precision)
    size = weights.base_bytes(run, precision)
    base = parameter_entry("parameters", size, instants, tensors=tensors)
    if run.unrolled and (run.quantization is not None or run.from_pretrained):
        events = pretrained_events if run.from_pretrained else loading_events
        return replace(base, script=events(run, precision))
    return base


def _tower_entry(run: Run, precision: Precision, instants: Instants) -> Entry:
    """The vision tower's weights, quantized like the model's."""
    sizes = list(weights.tower_tensors(run, precision))
    return parameter_entry("vision tower", sum(sizes, EMPTY), instants, tensors=lambda: sizes)


def tower_gradients(run: Run, precision: Precision, instants: Instants) -> Iterator[Entry]:
    """Gradients of a vision tower that is trained. Images reach it first, so its backward is last,
    beside the embedding's; its activations are not modelled, so it is one block here.
    """
    if run.trained_tower:
        sizes = [sized(weight.numel, precision.weights) for weight in run.trained_tower]
        live = {at.name: 1 if at.work == "embedding" else at.embedding_grads for at in instants}
        name, source = "vision tower: gradients", code("torch autograd: kept until zero_grad")
        yield Entry(name, GRAD, sum(sizes, EMPTY), live, source, tensors=lambda: sizes)


def weight_gradients(
    run: Run, precision: Precision, stack: LayerGroups, instants: Instants
) -> Iterator[Entry]:
    """Whole gradients of the trained weights, in their dtype.

    A tied table's gradient appears with the head's, an untied one's with the embedding's. Learnt
    positions and the embedding's norm have theirs with the embedding's either way.
    """
    before = 0 if run.frozen else run.arch.embedding_parameters
    after = 0 if run.frozen else run.arch.after_parameters
    tied = run.arch.tied and not run.frozen and not run.compile  # there it is the embedding's
    shared = run.arch.embedding[0].numel if tied else 0
    layers = tuple((group.title, weights.trained_elements(run, group.layer)) for group in stack)
    table, head, bits = before - shared, after + shared, trained_bits(run, precision)
    return states.gradient_entries(run, layers, table, head, bits, instants)
