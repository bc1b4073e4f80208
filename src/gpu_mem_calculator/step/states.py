"""Parameters, gradients and optimizer states as ledger entries that engines share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod

from msgspec.structs import replace

from ..ledger.ledger import GPU, GRAD, OPTIM, PARAM, TEMP, UNIFIED, Entry
from ..ledger.num import Num, larger
from ..ledger.source import ARITHMETIC, code
from ..model.arch import Buffer
from ..replay.rounding import block_bytes
from ..run.phases import OPTIMIZER
from ..run.run import Run
from .instants import StepInstant
from .optimizers import (
    FORLOOP,
    OPTIMIZERS,
    Optimizer,
    clip_temp_bytes,
    loop_temp_bytes,
    paged_bytes,
    state_bytes,
    step_temp_bytes,
    step_temps,
    tensor_state_bytes,
    tensor_states,
)
from .weights import trained_shapes

# The model, adapters; DDP sends the parameters, then makes its buckets.
STARTUPS = ("startup", "startup.adapted", "startup.sent", "startup.wrapped")
OPTIMIZER_CODE = code("torch 2.11 torch/optim, bitsandbytes 0.50.2 optim")


def always(beats: tuple[StepInstant, ...]) -> dict[str, Num]:
    """Alive at every instant."""
    return {beat.name: 1 for beat in beats}


def from_start(entry: Entry) -> Entry:
    """The same entry, there from start-up on."""
    return replace(entry, live={**dict.fromkeys(STARTUPS, 1), **entry.live})


def parameter_entry(
    name: str, size: Num, beats: tuple[StepInstant, ...], place: str = GPU,
    tensors: Callable[[], Iterable[Num]] | None = None,
) -> Entry:  # fmt: skip
    """Weights that stay where they are."""
    return Entry(
        name=name, kind=PARAM, bytes=size, live=always(beats), source=ARITHMETIC, place=place,
        tensors=tensors,
    )  # fmt: skip


def buffer_entry(run: Run, beats: tuple[StepInstant, ...], layers: Num = None) -> Entry:
    """Tensors that are kept but not trained; torch rounds each to 512 bytes.

    `layers`: of a pipeline's stage, whose layers have their own and no others.
    """
    one, rest = run.arch.layer_buffers, run.arch.buffers
    if layers is not None and one:
        rest = tuple(b for b in rest if not run.arch.of_layer(b))
    own, others = map(_rounded, (one if layers is not None else (), rest))
    count = 0 if layers is None else layers
    return Entry(name="buffers", kind=PARAM, bytes=sum(others) + sum(own) * count,
                 live=always(beats), source=ARITHMETIC,
                 tensors=lambda: [*others, *own * int(count)])  # fmt: skip


def _rounded(buffers: tuple[Buffer, ...]) -> list[int]:
    return [block_bytes(b.num_bytes) for b in buffers]


def optimizer_entries(
    run: Run, elements: Num, bits: int, beats: tuple[StepInstant, ...], *, implementation: str,
    largest: Num, tensors: Num, side: Num = 0, sizes: tuple[tuple[int, int], ...] = (),
    neighbours: frozenset[tuple[int, int, int, int]] = frozenset(),
) -> Iterator[Entry]:  # fmt: skip
    """Optimizer state for `elements` parameters of `bits`, and what its step needs.

    The states are there from the second step on, which is the step that counts. Clipping comes
    before the step and has let go by then: only what it takes beyond the step is added. `sizes`
    are the parameters' elements and how many there are of each, for rules that look at them.
    """
    row = OPTIMIZERS[run.optimizer]
    yield from _state_entries(run, row, elements, bits, beats, sizes)
    live: Mapping[str, Num] = {b.name: 1 for b in beats if b.instant.phase == OPTIMIZER}
    temp = step_temp_bytes(row, implementation, elements, largest, bits, side)
    if implementation == FORLOOP and row.forloop and neighbours:
        temp = loop_temp_bytes(row, neighbours, bits)
    clip = larger(clip_temp_bytes(tensors, largest) - temp, 0) if run.clipping else 0
    yield Entry(
        name=f"{run.optimizer} {implementation} temporaries", kind=TEMP, bytes=temp, live=live,
        source=OPTIMIZER_CODE,
        tensors=lambda: step_temps(row, implementation, sizes, bits, neighbours, largest, side),
    )  # fmt: skip
    yield Entry(
        name="gradient norms, beyond the step's own temporaries", kind=TEMP, bytes=clip, live=live,
        source=code("torch 2.13 nn/utils/clip_grad.py:95 and aten ForeachReduceOp.cu"),
    )  # fmt: skip


def _state_entries(
    run: Run, row: Optimizer, elements: Num, bits: int, beats: tuple[StepInstant, ...],
    sizes: tuple[tuple[int, int], ...],
) -> Iterator[Entry]:  # fmt: skip
    """The states; bitsandbytes' are counted tensor by tensor, since small ones are kept wide.

    Paged states are CUDA unified memory, which is no torch allocation: the driver moves them to
    the GPU for the step and back to the host when the GPU is full.
    """
    if row.factored:
        size = run.scaled(sum(factored_states(run))) * bits // 8
    elif row.block and sizes:
        size = sum(n * tensor_state_bytes(row, one, bits) for one, n in sizes)
    else:
        size = state_bytes(row, elements, bits)
    paged = sum(n * paged_bytes(row, one, bits) for one, n in sizes)
    yield Entry(
        name=f"{run.optimizer} states", kind=OPTIM, bytes=size - paged, live=always(beats),
        source=OPTIMIZER_CODE,
        tensors=lambda: [n * bits // 8 for n in factored_states(run)] if row.factored
        else _listed(sizes, lambda n: tensor_states(row, n, bits)),
    )  # fmt: skip
    if row.paged and sizes:
        yield Entry(
            name=f"{run.optimizer} states in unified memory", kind=OPTIM, bytes=paged,
            live=always(beats), place=UNIFIED,
            source=code("bitsandbytes 0.50.2 optim/optimizer.py:383 and functional.py get_paged"),
        )  # fmt: skip


def _listed(sizes: tuple[tuple[int, int], ...], each: Callable[[int], list[Num]]) -> list[Num]:
    """What each parameter has, one after the other."""
    return [size for elements, count in sizes for _ in range(count) for size in each(elements)]


def factored_states(run: Run) -> list[Num]:
    """Elements of each second moment that Adafactor keeps for the parameters it steps.

    A row's and a column's for each matrix, all of a vector (torch 2.11 optim/_adafactor.py
    _init_group: row_var, col_var, variance).
    """
    found: list[Num] = []
    for *stacked, last in trained_shapes(run):
        if stacked:
            *stacked, rows = stacked
            found += [size * prod(stacked) for size in (rows, last)]
        else:
            found.append(last)
    return found


def gradient_entries(
    run: Run, layers: tuple[tuple[str, Num], ...], embedding: Num, head: Num,
    bits: int, beats: tuple[StepInstant, ...], shards: Num = 1,
) -> Iterator[Entry]:  # fmt: skip
    """Gradients as backward makes them, layer by layer; `shards` cuts them flat.

    In an unrolled run the scripts of layers, head and embedding leave theirs.
    `layers` gives a title and the elements of one layer for each stretch.
    """
    source = code("torch autograd: a gradient of the parameter's dtype, kept until zero_grad")
    for i, (title, elements) in enumerate(() if run.unrolled else layers):
        yield Entry(
            name=f"{title}: gradients", kind=GRAD, bytes=elements * bits // 8 // shards,
            live={b.name: b.grads[i] for b in beats}, source=source,
        )  # fmt: skip
    ends = (("embedding", embedding, "embedding_grads"), ("head", head, "head_grads"))
    for name, elements, pick in () if run.unrolled else ends:
        yield Entry(
            name=f"{name}: gradients", kind=GRAD, bytes=elements * bits // 8 // shards,
            live={b.name: getattr(b, pick) for b in beats}, source=source,
        )  # fmt: skip
