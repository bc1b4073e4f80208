"""PyTorch on one GPU, and DistributedDataParallel: every rank holds everything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from ...ledger.ledger import BUCKETS, COMM, OLD_BUCKETS, OPTIM, PARAM, Entry, Instant, Ledger
from ...ledger.num import holds
from ...ledger.source import code, measured
from ...run.engine import Engine
from ...run.phases import OPTIMIZER, STARTUP
from ...run.run import Precision, Run
from ...step.activations import GO, activation_entries, setting, walks
from ...step.block_events import plays
from ...step.instants import StepInstant, step
from ...step.layer_groups import LayerGroup, blocks
from ...step.optimizers import OPTIMIZERS, default_implementation
from ...step.quantization import loading_script
from ...step.states import (
    STARTUPS,
    always,
    buffer_entry,
    from_start,
    gradient_entries,
    optimizer_entries,
    parameter_entry,
)
from ...step.weights import (
    base_bytes,
    base_tensors,
    largest_trained,
    shorter_side,
    tower_tensors,
    trained_bits,
    trained_elements,
    trained_sizes,
    trained_tensors,
    trained_total,
)
from ...step.workspaces import workspace_entries
from .buckets import BucketStreamWriter, buckets, sent_bytes, sent_script

PRECISIONS = {
    "fp32": Precision(32, 32),
    "bf16_mixed": Precision(32, 32, autocast=True),
    "fp16_mixed": Precision(32, 32, autocast=True),
    "bf16_pure": Precision(16, 16),
    "fp16_pure": Precision(16, 16),
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
    beats = step(tuple(b.stretch for b in stack), micro_batches=run.micro_batches,
                 every=run.unrolled)  # fmt: skip
    done = walks(run, how, stack)
    entries = [*_states(run, precision, beats), *workspace_entries(run, beats)]
    if run.options.get("gradient_as_bucket_view"):
        done = replace(done, gradients=GO)  # a copy into a view (reducer.cpp)
    else:
        entries += _gradients(run, precision, stack, beats)
    entries += activation_entries(run, how, stack, beats, done)
    wrapped = holds(run.mesh.dp > 1)
    starts = (
        Instant(name="startup", phase=STARTUP, title="start-up: model on the GPU"),
        Instant(name="startup.adapted", phase=STARTUP, title="start-up: adapters added",
                present=int(run.adapter is not None)),
        Instant(name="startup.sent", phase=STARTUP, title="start-up: parameters sent",
                present=wrapped),
        Instant(name="startup.wrapped", phase=STARTUP, title="start-up: wrapped by DDP",
                present=wrapped),
    )  # fmt: skip
    instants = (*starts, *(b.instant for b in beats))
    found = Ledger(instants, tuple(entries), plays(stack, beats, done) if run.unrolled else {},
                   writer=BucketStreamWriter)  # fmt: skip
    return _with_first_step(run, found, trained_bits(run, precision))


def _with_first_step(run: Run, ledger: Ledger, bits: int) -> Ledger:
    """The second micro-batch of the first step: no optimizer state yet, but two sets of buckets.

    DDP makes its buckets anew in the second forward. What NCCL was given goes with the first
    collective that is asked for after its watchdog has looked, every 100 ms (torch 2.11
    ProcessGroupNCCL.cpp workEnqueue, shelvesToUnstash_; seen in an H200's allocator history): as
    a rule not before that micro-batch is over, and where the step then ends, not before that.
    """
    last = [i for i in ledger.instants if i.phase == OPTIMIZER]
    later = [i for i in ledger.instants if i.micro_batch]
    if not later:
        return ledger
    step, names = ({i.name: i.in_first_step().name for i in some} for some in (last, later))
    here = holds(run.mesh.dp > 1)
    two = here * holds(run.micro_batches == 2)
    again = tuple(
        i.in_first_step(title=f"{i.title}, first step",
                        present=i.present * (here if i.micro_batch else two))
        for i in ledger.instants if i.name in names or i.name in step
    )  # fmt: skip
    entries = [_also(e, step if e.kind == OPTIM else names | step) for e in ledger.entries]
    old = Entry(
        name="gradient buckets of the first micro-batch", kind=COMM, role=OLD_BUCKETS,
        bytes=trained_total(run) * bits // 8,
        live=dict.fromkeys((*names.values(), *step.values()), 1),
        source=measured("NVIDIA H200, torch 2.11.0, NCCL: in 10 of 10 accumulating DDP runs until "
                        "the loss of the second micro-batch, in 5 through the first step"),
    )  # fmt: skip
    return replace(ledger, instants=(*ledger.instants, *again), entries=(*entries, old))


def _also(entry: Entry, names: Mapping[str, str]) -> Entry:
    """The same entry, alive under other names, too."""
    more = {new: entry.live[name] for name, new in names.items() if name in entry.live}
    return replace(entry, live={**entry.live, **more})


def _gradients(
    run: Run, precision: Precision, stack: tuple[LayerGroup, ...], beats: tuple[StepInstant, ...]
) -> Iterator[Entry]:
    """A tied table's gradient appears with the head's, an untied one's with the embedding's.

    Learnt positions and the embedding's norm have theirs with the embedding's either way.
    """
    before = 0 if run.frozen else run.arch.embedding_parameters
    after = 0 if run.frozen else run.arch.after_parameters
    shared = run.arch.embedding[0].numel if run.arch.tied and not run.frozen else 0
    return gradient_entries(
        run,
        tuple((b.title, trained_elements(run, b.layer)) for b in stack),
        before - shared,
        after + shared,
        trained_bits(run, precision),
        beats,
    )


def _states(run: Run, precision: Precision, beats: tuple[StepInstant, ...]) -> Iterator[Entry]:
    trained, bits = trained_total(run), trained_bits(run, precision)
    sizes = [n * bits // 8 for n, _ in trained_sizes(run)] if run.unrolled else []
    base = parameter_entry("parameters", base_bytes(run, precision), beats,
                           tensors=lambda: base_tensors(run, precision))  # fmt: skip
    if run.unrolled and run.quantization is not None:
        base = replace(base, script=loading_script(run, precision))
    yield from_start(base)
    if run.arch.tower:
        yield from_start(tower_entry(run, precision, beats))
    if run.adapter is not None:
        made = parameter_entry("LoRA adapters", trained * bits // 8, beats,
                               tensors=lambda: sizes)  # fmt: skip
        yield replace(made, live={**dict.fromkeys(STARTUPS[1:], 1), **made.live})
    yield from_start(buffer_entry(run, beats))
    yield from optimizer_entries(
        run, trained, bits, beats,
        implementation=run.implementation or default_implementation(run.optimizer),
        largest=largest_trained(run), side=shorter_side(run), tensors=trained_tensors(run),
        sizes=trained_sizes(run),
        neighbours=frozenset() if run.frozen else run.arch.neighbours,
    )  # fmt: skip
    yield from _once(run, precision)
    yield Entry(
        name="parameters sent to the other ranks", kind=COMM,
        bytes=sent_bytes(sizes) * holds(run.mesh.dp > 1), live={"startup.sent": 1},
        script=sent_script(sizes) if sizes else None,
        source=code("torch 2.11 csrc/distributed/c10d/comm.cpp broadcast_coalesced"),
    )  # fmt: skip
    yield Entry(
        name="gradient buckets",
        kind=COMM,
        role=BUCKETS,
        bytes=holds(run.mesh.dp > 1) * trained * bits // 8,
        live={**always(beats), "startup.wrapped": 1},
        source=code("torch 2.11 csrc/distributed/c10d/reducer.cpp: flat copies of gradients"),
        tensors=lambda: buckets(sizes),
    )


def tower_entry(run: Run, precision: Precision, beats: tuple[StepInstant, ...]) -> Entry:
    """The vision tower's weights: text gives them no gradient, and torch makes states with the
    first gradient. DDP refuses parameters that stay without one (reducer.cpp
    ensure_prior_reduction_finished), so they are frozen where there are several ranks.
    """
    sizes = list(tower_tensors(run, precision))
    made = parameter_entry("vision tower", sum(sizes), beats, tensors=lambda: sizes)
    return replace(made, source=code("torch 2.11 optim/adam.py _init_group: p.grad is not None"))


def _once(run: Run, precision: Precision) -> Iterator[Entry]:
    """What is there for a moment while the model is made."""
    if run.quantization is not None and run.upcast_unquantized:
        yield Entry(
            name="largest weight that is widened, in 16 bits", kind=PARAM,
            bytes=run.arch.largest_weight * 2, live={"startup": 1},
            source=code("PEFT 0.21.2 utils/other.py prepare_model_for_kbit_training: data.to"),
        )  # fmt: skip
    elif run.arch.tied:
        yield Entry(
            name="head before it is tied to the embedding", kind=PARAM,
            bytes=run.scaled(run.arch.vocab * run.arch.hidden) * precision.weights // 8,
            live={"startup": 1},
            source=code("transformers 5.17.0 modeling_utils.py: lm_head is made, then tied"),
        )  # fmt: skip


ENGINE = Engine(
    name="pytorch_ddp",
    tower="weights alone: without a gradient torch makes no optimizer states for them",
    title="PyTorch DDP",
    options={"gradient_as_bucket_view": False},
    optimizers=frozenset(OPTIMIZERS),
    problems=problems,
    ledger=ledger,
)
