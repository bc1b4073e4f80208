"""PyTorch on one GPU, and DistributedDataParallel: every rank holds everything."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ..ledger.ledger import COMM, PARAM, Entry, Instant, Ledger
from ..ledger.num import holds
from ..ledger.source import code
from ..memory.activations import Walks, activation_entries, setting, walks
from ..memory.engine import Engine
from ..memory.optimizers import OPTIMIZERS, default_implementation
from ..memory.run import Precision, Run
from ..memory.runtime import workspace_entry
from ..memory.stack import Block, blocks
from ..memory.states import (
    always,
    buffer_entry,
    from_start,
    gradient_entries,
    optimizer_entries,
    parameter_entry,
)
from ..memory.timeline import STARTUP, Beat, step
from ..memory.weights import (
    base_bytes,
    largest_trained,
    trained_bits,
    trained_elements,
    trained_tensors,
    trained_total,
)

PRECISIONS = {
    "fp32": Precision(32, 32, 32),
    "bf16_mixed": Precision(32, 32, 32, autocast=True),
    "fp16_mixed": Precision(32, 32, 32, autocast=True),
    "bf16_pure": Precision(16, 16, 16),
    "fp16_pure": Precision(16, 16, 16),
}


def problems(run: Run) -> Iterator[str]:
    """DDP runs anything that one GPU runs."""
    if run.options["gradient_as_bucket_view"] and run.mesh.dp == 1:
        yield "engine.gradient_as_bucket_view=true needs more than one GPU; leave it out"


def ledger(run: Run) -> Ledger:
    """A whole copy of the model, its gradients and its optimizer on every rank."""
    precision = PRECISIONS[run.precision]
    how = setting(run, precision)
    stack = blocks(run, 0, len(run.arch.layers))
    beats = step(tuple(b.stretch for b in stack), micro_batches=run.micro_batches)
    done = walks(run, how, stack)
    entries = [*_states(run, precision, beats), workspace_entry(run, beats)]
    if run.options.get("gradient_as_bucket_view"):
        done = _into_buckets(done)
    else:
        entries += _gradients(run, precision, stack, beats)
    entries += activation_entries(run, how, stack, beats, done)
    starts = (
        Instant(name="startup", phase=STARTUP, title="start-up: model on the GPU"),
        Instant(name="startup.wrapped", phase=STARTUP, title="start-up: wrapped by DDP"),
    )
    return Ledger((*starts, *(b.instant for b in beats)), tuple(entries))


def _into_buckets(done: Walks) -> Walks:
    """A gradient goes into its bucket as soon as it is made (reducer.cpp, a copy into a view)."""
    layers = tuple(replace(walk, backward=walk.later) for walk in done.layers)
    return Walks(layers, replace(done.head, backward=done.head.later))


def _gradients(
    run: Run, precision: Precision, stack: tuple[Block, ...], beats: tuple[Beat, ...]
) -> Iterator[Entry]:
    """A tied table's gradient appears with the head's, an untied one's with the embedding's."""
    table = 0 if run.frozen else run.arch.embedding_parameters
    after = 0 if run.frozen else run.arch.after_parameters
    tied = run.arch.tied
    return gradient_entries(
        run,
        tuple((b.title, trained_elements(run, b.layer)) for b in stack),
        run.scaled(0 if tied else table),
        run.scaled(after + (table if tied else 0)),
        trained_bits(run, precision),
        beats,
    )


def _states(run: Run, precision: Precision, beats: tuple[Beat, ...]) -> Iterator[Entry]:
    trained, bits = trained_total(run), trained_bits(run, precision)
    yield from_start(parameter_entry("parameters", base_bytes(run, precision), beats))
    if run.adapter is not None:
        yield from_start(parameter_entry("LoRA adapters", trained * bits // 8, beats))
    yield from_start(buffer_entry(run, beats))
    yield from optimizer_entries(
        run, trained, bits, beats,
        implementation=run.implementation or default_implementation(run.optimizer),
        largest=largest_trained(run), tensors=trained_tensors(run),
    )  # fmt: skip
    if run.arch.tied and run.quantization is None:
        yield Entry(
            name="head before it is tied to the embedding", kind=PARAM,
            bytes=run.scaled(run.arch.vocab * run.arch.hidden) * precision.weights // 8,
            live={"startup": 1},
            source=code("transformers 5.17.0 modeling_utils.py: lm_head is made, then tied"),
        )  # fmt: skip
    yield Entry(
        name="gradient buckets",
        kind=COMM,
        bytes=holds(run.mesh.dp > 1) * trained * bits // 8,
        live={**always(beats), "startup.wrapped": 1},
        source=code("torch 2.11 csrc/distributed/c10d/reducer.cpp: flat copies of gradients"),
    )


ENGINE = Engine(
    name="pytorch_ddp",
    title="PyTorch DDP",
    options={"gradient_as_bucket_view": False},
    optimizers=frozenset(OPTIMIZERS),
    problems=problems,
    ledger=ledger,
)
