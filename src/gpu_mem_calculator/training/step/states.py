"""Entries of parameters, adapters, gradients and optimizer states, for every engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod

from msgspec.structs import replace

from ...ledger.ledger import GPU, GRAD, OPTIM, PARAM, TEMP, UNIFIED, Entry
from ...ledger.num import EMPTY, Bytes, Num, larger, sized
from ...ledger.source import ARITHMETIC, code
from ...models.arch.arch import Buffer
from ...pytorch.autograd.events import BlockEvents, EventRecorder
from ...pytorch.replay.rounding import block_bytes
from ...run.phases import OPTIMIZER
from ...run.run import Run
from ..optimizers import (
    FORLOOP,
    OPTIMIZERS,
    Optimizer,
    by_width,
    paged_bytes,
    state_bytes,
    tensor_state_bytes,
    tensor_states,
)
from .instants import Instants
from .optimizer_temps import (
    clip_temp_bytes,
    loop_events,
    loop_temp_bytes,
    step_temp_bytes,
    step_temps,
)
from .weights import stepped_shapes, trained_shapes, wide_tables

STARTUP_REFERENCE = "startup.reference"
# Start-up: the model, its adapters, a reference model; DDP broadcasts the parameters, then makes
# its buckets.
STARTUPS = ("startup", "startup.adapted", STARTUP_REFERENCE, "startup.sent", "startup.wrapped")


def at_every_instant(instants: Instants) -> dict[str, Num]:
    """One copy at every instant, by the instant's name."""
    return {i.name: 1 for i in instants}


def startups(run: Run) -> tuple[str, ...]:
    """The names of start-up's instants; a reference model has one."""
    return STARTUPS if run.reference else tuple(s for s in STARTUPS if s != STARTUP_REFERENCE)


def with_startup(run: Run, entry: Entry) -> Entry:
    """The same entry, alive from start-up on."""
    return replace(entry, live={**dict.fromkeys(startups(run), 1), **entry.live})


def parameter_entry(
    name: str,
    size: Bytes,
    instants: Instants,
    place: str = GPU,
    tensors: Callable[[], Iterable[Bytes]] | None = None,
) -> Entry:
    """Weights of `size` bytes that are alive at every instant."""
    return Entry(
        name, PARAM, size, at_every_instant(instants), ARITHMETIC, place=place, tensors=tensors
    )


def buffer_entry(run: Run, instants: Instants, layers: Num | None = None) -> Entry:
    """Tensors that belong to the model and are not trained; torch rounds each to 512 bytes.

    `layers`: how many layers a pipeline stage has; other layers' buffers are not on its rank.
    """
    in_layer, rest = run.arch.layer_buffers, run.arch.buffers
    if layers is not None and in_layer:
        rest = tuple(b for b in rest if not run.arch.of_layer(b))
    each, others = map(_rounded_bytes, (in_layer if layers is not None else (), rest))
    count = 0 if layers is None else layers
    size = sum(others, EMPTY) + sum(each, EMPTY) * count
    return parameter_entry("buffers", size, instants, tensors=lambda: [*others, *each * int(count)])


def _rounded_bytes(buffers: tuple[Buffer, ...]) -> list[Bytes]:
    return [sized(block_bytes(b.num_bytes), 8) for b in buffers]


def optimizer_entries(
    run: Run,
    elements: Num,
    bits: int,
    instants: Instants,
    *,
    implementation: str,
    largest: Num,
    tensors: Num,
    side: Num = 0,
    sizes: tuple[tuple[int, int], ...] = (),
    neighbours: frozenset[tuple[int, int, int, int]] = frozenset(),
) -> Iterator[Entry]:
    """Optimizer states for `elements` parameters of `bits`, and what the step needs while it runs.

    The states exist from the second step on, which is the step that the ledger shows. Clipping
    runs before the step and has freed its memory by then: only what it needs beyond the step is
    added. `largest` is the elements of the largest parameter, `side` its shorter side, `tensors`
    the number of parameters. `sizes`, (elements, how many), and `neighbours` are for rules that
    depend on single parameters.
    """
    row = OPTIMIZERS[run.optimizer]
    yield from _state_entries(run, row, elements, bits, instants, sizes)
    live: Mapping[str, Num] = {i.name: 1 for i in instants if i.instant.phase == OPTIMIZER}
    temp = step_temp_bytes(row, implementation, elements, largest, bits, side)
    if implementation == FORLOOP and row.forloop and neighbours:
        temp = loop_temp_bytes(row, neighbours, bits)
    clip = larger(clip_temp_bytes(tensors, largest) - temp, EMPTY) if run.clipping else EMPTY
    yield Entry(
        name=f"{run.optimizer} {implementation} temporaries",
        kind=TEMP,
        bytes=temp,
        live=live,
        source=row.source,
        tensors=lambda: step_temps(
            row, implementation, sizes, bits, neighbours, int(largest), int(side)
        ),
        script=loop_events(row, stepped_shapes(run), bits) if run.unrolled else None,
    )
    yield Entry(
        name="gradient norms, beyond the step's own temporaries",
        kind=TEMP,
        bytes=clip,
        live=live,
        source=code("torch 2.13 nn/utils/clip_grad.py:95 and aten ForeachReduceOp.cu"),
    )


def _state_entries(
    run: Run,
    row: Optimizer,
    elements: Num,
    bits: int,
    instants: Instants,
    sizes: tuple[tuple[int, int], ...],
) -> Iterator[Entry]:
    """The states; bitsandbytes' are counted by tensor, since small tensors have fp32 states.

    Paged states are CUDA unified memory, which torch does not allocate: the driver moves them to
    the GPU for the step and back to the host when the GPU is full.
    """
    wide = wide_tables(run)
    merged = tuple(Counter(n for n, _ in sizes).items()) if run.unrolled else sizes
    each = tuple(by_width(row, merged, wide))
    if row.factored:
        size = sized(run.scaled(sum(factored_states(run))), row.bits or bits)
    elif row.block and sizes:
        size = sum((n * tensor_state_bytes(one, size, bits) for one, size, n in each), EMPTY)
    else:
        size = state_bytes(row, elements, bits)
    paged = sum((n * paged_bytes(one, size, bits) for one, size, n in each), EMPTY)
    entry = Entry(
        name=f"{run.optimizer} states",
        kind=OPTIM,
        bytes=size - paged,
        live=at_every_instant(instants),
        source=row.source,
        tensors=lambda: (
            [sized(n, row.bits or bits) for n in factored_states(run)]
            if row.factored
            else _states_in_order(by_width(row, sizes, wide), bits)
        ),
    )
    yield with_startup(run, entry) if row.from_start else entry
    if row.paged and sizes:
        yield Entry(
            name=f"{run.optimizer} states in unified memory",
            kind=OPTIM,
            bytes=paged,
            live=at_every_instant(instants),
            place=UNIFIED,
            source=code("bitsandbytes 0.50.2 optim/optimizer.py:383 and functional.py get_paged"),
        )


def _states_in_order(each: Iterable[tuple[Optimizer, int, int]], bits: int) -> list[Bytes]:
    """Bytes of the states of each tensor; those of equal ones are computed once."""
    known: dict[tuple[int, int], list[Bytes]] = {}
    states: list[Bytes] = []
    for row, elements, count in each:
        key = row.bits, elements
        if key not in known:
            known[key] = tensor_states(row, elements, bits)
        states += known[key] * count
    return states


def factored_states(run: Run) -> list[Num]:
    """Elements of each second moment that Adafactor keeps for the parameters it steps.

    One row and one column for each matrix, all of a vector (torch 2.11 optim/_adafactor.py
    _init_group: row_var, col_var, variance). transformers' also keeps the norm of each parameter
    (transformers 5.17.0 optimization.py Adafactor.step).
    """
    states: list[Num] = []
    norms: list[Num] = [1] if OPTIMIZERS[run.optimizer].copies else []
    for *stacked, last in trained_shapes(run):
        if stacked:
            *stacked, rows = stacked
            states += [size * prod(stacked) for size in (rows, last)]
        else:
            states.append(last)
        states += norms
    return states


def gradient_entries(
    run: Run,
    layers: tuple[tuple[str, Num], ...],
    embedding: Num,
    head: Num,
    bits: int,
    instants: Instants,
) -> Iterator[Entry]:
    """Gradients, which backward allocates layer by layer, whole on each rank.

    `layers`: a title and the elements of one layer for each layer group; `embedding` and `head`:
    elements. In an unrolled run the events of the blocks allocate the gradients instead.
    """
    source = code("torch autograd: a gradient of the parameter's dtype, kept until zero_grad")
    if run.unrolled:
        return
    alive: list[tuple[str, Num, dict[str, Num]]] = [
        (title, elements, {at.name: at.grads[i] for at in instants})
        for i, (title, elements) in enumerate(layers)
    ]
    alive.append(("embedding", embedding, {at.name: at.embedding_grads for at in instants}))
    alive.append(("head", head, {at.name: at.head_grads for at in instants}))
    for name, elements, live in alive:
        size = sized(elements, bits)
        yield Entry(name=f"{name}: gradients", kind=GRAD, bytes=size, live=live, source=source)


CAST_CODE = code("trl 1.16.0 trainer/sft_trainer.py: param.data.to(torch.bfloat16), one by one")


def adapter_entries(
    run: Run, elements: Num, sizes: Sequence[Bytes], instants: Instants
) -> Iterator[Entry]:
    """The adapters' weights: `elements` in all, tensors of `sizes` bytes in an unrolled run."""
    assert run.adapter is not None
    bits, initial = run.adapter.bits, run.adapter.initial_bits
    total = sized(elements, bits)
    entry = parameter_entry("LoRA adapters", total, instants, tensors=lambda: sizes)
    entry = replace(entry, live={**dict.fromkeys(startups(run)[1:], 1), **entry.live})
    if initial and run.unrolled:
        yield replace(entry, script=_cast_events(sizes, bits, initial))
        return
    yield entry
    if initial:
        rows, columns = next(iter(trained_shapes(run)))
        first = sized(rows * columns, bits)
        yield Entry(
            name="LoRA adapters before they are cast, and the first one's copy",
            kind=PARAM,
            bytes=sized(elements, initial) - total + first,
            live={"startup.adapted": 1},
            source=CAST_CODE,
        )


def _cast_events(sizes: Sequence[Bytes], bits: int, initial: int) -> BlockEvents:
    """All adapters are made, then cast one by one."""
    recorder = EventRecorder()
    made = [recorder.weight(size * initial // bits) for size in sizes]
    cast = []
    for size, old in zip(sizes, made, strict=True):
        cast.append(recorder.weight(size))
        recorder.over((old,))
    return recorder.forward_only(cast)
