"""PyTorch on one GPU, and DistributedDataParallel: every rank holds everything."""

from __future__ import annotations

from collections.abc import Iterator

from ..ledger.ledger import COMM, Entry, Ledger
from ..ledger.num import Num, holds
from ..ledger.source import code
from ..memory.activations import activation_entries, setting, walks
from ..memory.engine import Engine
from ..memory.optimizers import OPTIMIZERS
from ..memory.run import Precision, Run
from ..memory.runtime import workspace_entry
from ..memory.stack import blocks
from ..memory.states import (
    always,
    buffer_entry,
    gradient_entries,
    optimizer_entries,
    parameter_entry,
)
from ..memory.timeline import Beat, step

PRECISIONS = {
    "fp32": Precision(32, 32, 32),
    "bf16_mixed": Precision(32, 32, 32, autocast=True),
    "fp16_mixed": Precision(32, 32, 32, autocast=True),
    "bf16_pure": Precision(16, 16, 16),
    "fp16_pure": Precision(16, 16, 16),
}


def problems(run: Run) -> Iterator[str]:
    """DDP runs anything that one GPU runs."""
    return iter(())


def ledger(run: Run) -> Ledger:
    """A whole copy of the model, its gradients and its optimizer on every rank."""
    precision = PRECISIONS[run.precision]
    how = setting(run, precision)
    stack = blocks(run, 0, len(run.arch.layers))
    beats = step(tuple(b.stretch for b in stack), micro_batches=run.micro_batches)
    done = walks(run, how, stack)
    entries = [
        *_states(run, precision, beats),
        *activation_entries(run, how, stack, beats, done),
        *gradient_entries(
            run,
            tuple((b.title, run.scaled(b.layer.num_parameters)) for b in stack),
            run.scaled(0 if run.arch.tied else run.arch.embedding_parameters),
            run.scaled(_head(run)),
            precision.grads,
            beats,
        ),
        workspace_entry(run, beats),
    ]
    return Ledger(tuple(b.instant for b in beats), tuple(entries))


def _head(run: Run) -> int:
    """Elements whose gradient the head makes: a tied table's gradient appears there first."""
    tied = run.arch.embedding_parameters if run.arch.tied else 0
    return run.arch.after_parameters + tied


def _states(run: Run, precision: Precision, beats: tuple[Beat, ...]) -> Iterator[Entry]:
    count = run.scaled(run.arch.num_parameters)
    yield parameter_entry("parameters", count * precision.weights // 8, beats)
    yield buffer_entry(run, beats)
    yield from optimizer_entries(
        run, count, precision.weights, beats,
        implementation=run.implementation or "foreach",
        largest=max(w.numel for w in run.arch.weights()),
    )  # fmt: skip
    many: Num = holds(run.mesh.dp > 1)
    yield Entry(
        name="gradient buckets", kind=COMM, bytes=many * count * precision.grads // 8,
        live=always(beats),
        source=code("torch 2.11 csrc/distributed/c10d/reducer.cpp: flat copies of all gradients"),
    )  # fmt: skip


ENGINE = Engine(
    name="pytorch_ddp",
    title="PyTorch DDP",
    aliases=("pytorch", "ddp"),
    options={"gradient_as_bucket_view": False},
    optimizers=frozenset(OPTIMIZERS),
    problems=problems,
    ledger=ledger,
)
