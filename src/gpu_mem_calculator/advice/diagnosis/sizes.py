"""Sizes are fingerprints: which tensors of a run are as large as what was asked for.

torch says what it asks the driver for: the tensor, rounded up to 2 MiB from 10 MiB on (20 MiB below
that). A size is compared to the printed digit, with the ledger's entries, with the weights, and
with products of the run's own numbers: with what the phase allocates in which it died.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from msgspec import Struct

from ...estimates.calculator import Estimate
from ...ledger.ledger import GPU
from ...ledger.units import MIB
from ...models.arch.arch import Arch
from ...pytorch.replay.rounding import LEAST_OWN_SEGMENT, UNIT, segment_units
from ...run import phases
from ...run.run import Run
from ...tools.logs.figure import Figure
from .places import (
    BACKWARD,
    CACHE,
    EVALUATION,
    FORWARD,
    GRAPHS,
    LOADING,
    OPTIMIZER_STEP,
    PROFILING,
    RESUMING,
    SAVING,
    SERVING,
    STARTING,
    SYNC,
)

LEAST = LEAST_OWN_SEGMENT * UNIT  # smaller requests are parts of a segment, whose size says nothing
WIDTHS = {1: "1 byte", 2: "2 bytes", 4: "4 bytes", 8: "8 bytes"}
MOST = 4  # explanations of a size that are told
LEAST_TOKENS, MOST_TOKENS = 16, 2**22
MOST_KEPT = 64  # batches of an evaluation whose logits can be in one tensor
SORTED = "indices of sorted logits"
GENERATING = "generation"
PASSES = (FORWARD, BACKWARD, EVALUATION, GENERATING, PROFILING)  # the model runs in them
# A phase of a death in the words of the ledger; with none, an entry of any phase can be it.
LEDGER: Mapping[str, tuple[str, ...]] = {
    LOADING: (phases.STARTUP,),
    STARTING: (phases.STARTUP,),
    FORWARD: (phases.FORWARD, phases.PREFILL),
    BACKWARD: (phases.BACKWARD,),
    OPTIMIZER_STEP: (phases.OPTIMIZER,),
    EVALUATION: (phases.EVALUATION,),
    SAVING: (phases.SAVING, phases.STARTUP),
    GENERATING: (phases.GENERATION, phases.PREFILL, phases.DECODE),
    **dict.fromkeys(("", PROFILING, CACHE, GRAPHS, SERVING, SYNC, RESUMING), ()),
}


class Explained(Struct, frozen=True):
    """A tensor that is as large as a size: its name, and its size as a product.

    `tokens`: how many it would have, where that is what the size says; `exact`: by the run's own
    numbers; `of_weight`: it has the size of a weight, and so have its gradient and its states.
    """

    tensor: str
    formula: str
    exact: bool = True
    tokens: int = 0
    of_weight: bool = False


def asked_bytes(size: float) -> int:
    """What torch asks the driver for, for a tensor."""
    units = segment_units(-(-int(size) // UNIT), 20 * MIB // UNIT)
    return units * UNIT


def is_size(figure: Figure, size: float) -> bool:
    """Whether a tensor's request is printed as a figure is."""
    rounded = -(-int(size) // UNIT) * UNIT  # as a memory snapshot says it
    return any(map(figure.is_near, (asked_bytes(size), size, rounded)))


def explained(figure: Figure, estimate: Estimate, phase: str = "") -> list[Explained]:
    """The tensors of a run that are as large as a size; what fits best first.

    phase: where it died; "": anywhere
    """
    if figure.value < LEAST or estimate.served:
        return []
    found: dict[str, Explained] = {}
    for size, one in _of_run(estimate, phase):
        if size >= 1 and is_size(figure, size):
            found.setdefault(one.tensor, one)
    if found:
        return list(found.values())[:MOST]
    if not _has(phase, *PASSES):
        return []
    return list(_by_tokens(figure, estimate.resolved.run.arch))[:MOST]


def by_model(figure: Figure, arch: Arch) -> list[Explained]:
    """The same where the model alone is known."""
    if figure.value < LEAST:
        return []
    weights = [one for size, one in _weights(arch, (1, 2, 4)) if is_size(figure, size)]
    whole = arch.num_parameters
    for width, ranks in product((2, 4), range(1, 65)):
        if is_size(figure, whole * width / ranks):
            words = f"{whole:,} parameters × {WIDTHS[width]}" + f" / {ranks} ranks" * (ranks > 1)
            weights.append(Explained("flat buffer of the parameters", words, exact=False))
    widest = max((one.numel for one in arch.weights()), default=0) * 4
    about = [] if weights else list(_by_tokens(figure, arch))
    if not weights and not about and figure.value > widest:
        tokens = round(figure.value / (arch.vocab * 4))
        words = f"about {tokens:,} tokens × {arch.vocab:,} logits × {WIDTHS[4]}"
        about = [Explained("logits", words, exact=False, tokens=tokens)]
    return [*weights, *about][:MOST]


def _has(phase: str, *phases: str) -> bool:
    """Whether a phase is one of some, or not known."""
    return phase in ("", *phases)


def _of_run(estimate: Estimate, phase: str) -> Iterator[tuple[float, Explained]]:
    """The sizes of a run, with their names: what torch asks for at once in a phase."""
    run = estimate.resolved.run
    arch = run.arch
    widths = [(2, "logits"), (4, "logits in fp32")]
    if run.new_tokens is not None or phase == GENERATING:  # what samples sorts them
        widths.append((8, SORTED))
    if _has(phase, *PASSES):
        for told, tokens in _batches(run, phase):
            for width, name in widths:
                words = f"{told} × {arch.vocab:,} logits × {WIDTHS[width]}"
                yield tokens * arch.vocab * width, Explained(name, words)
    yield from _ledger(estimate, phase)
    if _has(phase, LOADING, STARTING, OPTIMIZER_STEP, SAVING):
        yield from _flat(estimate)
    if _has(phase, *PASSES):
        for told, tokens in _batches(run, phase):
            yield from _of_layers(arch, told, tokens)
        yield from _of_pairs(run)
    yield from _weights(arch, (2, 4))


def _batches(run: Run, phase: str) -> Iterator[tuple[str, int]]:
    """The tokens that go through the model at once, in words and as a number."""
    batch, seq = int(run.batch), int(run.seq)
    if run.new_tokens is not None:
        yield f"{batch:,} sequences", batch
    yield f"{batch} × {seq:,} tokens", batch * seq
    tested = run.evaluation
    if tested is not None and _has(phase, EVALUATION):
        batch, seq = int(tested.batch), int(tested.seq)
        yield f"{batch} × {seq:,} tokens", batch * seq
        yield f"{batch} × {seq - 1:,} tokens", batch * (seq - 1)
        for kept in range(2, min(tested.kept, MOST_KEPT) + 1):  # they are joined, one by one
            yield f"{kept} batches of {batch} × {seq:,} tokens", kept * batch * seq


def _flat(estimate: Estimate) -> Iterator[tuple[float, Explained]]:
    """All parameters in one piece, or a rank's share of them."""
    run = estimate.resolved.run
    ranks = max(int(run.mesh.dp), 1)
    whole = int(run.parameters_given or run.arch.num_parameters)
    for width, shared in product((2, 4), sorted({1, ranks})):
        words = f"{whole:,} parameters × {WIDTHS[width]}" + f" / {shared} ranks" * (shared > 1)
        name = "flat buffer of the parameters" if width == 2 else "fp32 copies of the parameters"
        yield whole * width / shared, Explained(name, words)


def _of_layers(arch: Arch, told: str, tokens: int) -> Iterator[tuple[float, Explained]]:
    """What layers make of each token."""
    for width in (2, 4):
        words = f"{told} × {arch.hidden:,} × {WIDTHS[width]}"
        yield tokens * arch.hidden * width, Explained("hidden states", words)
    for inner, width in product(sorted(one for _, one in _widths(arch) if one), (2, 4)):
        words = f"{told} × {inner:,} × {WIDTHS[width]}"
        yield tokens * inner * width, Explained("MLP", words)


def _of_pairs(run: Run) -> Iterator[tuple[float, Explained]]:
    """Scores of every pair of tokens."""
    batch, seq = int(run.batch), int(run.seq)
    for heads, width in product(sorted(one for one, _ in _widths(run.arch) if one), (2, 4)):
        words = f"{batch} × {heads} heads × {seq:,}² × {WIDTHS[width]}"
        yield batch * heads * seq**2 * width, Explained("attention scores", words)


def _widths(arch: Arch) -> set[tuple[int, int]]:
    """Heads of attention layers as (heads, 0), widths of MLPs as (0, width)."""
    found: set[tuple[int, int]] = set()
    for layer in arch.layers:
        heads, inner = getattr(layer.mixer, "heads", 0), getattr(layer.mlp, "ffn", 0)
        found |= {(int(heads), 0)} if heads else set()
        found |= {(0, int(inner))} if inner else set()
    return found


def _ledger(estimate: Estimate, phase: str) -> Iterator[tuple[float, Explained]]:
    """Entries of the busiest stage that are alive in a phase, and the tensors of those that are
    several.
    """
    ledger = estimate.ledger
    names = LEDGER[phase]
    there = {one.name for one in ledger.instants if not names or one.phase in names}
    for entry in ledger.entries:
        if entry.place != GPU or not int(entry.bytes) or not there & entry.live.keys():
            continue
        yield int(entry.bytes), Explained(entry.name, f"{int(entry.bytes):,} bytes")
        for name, size in entry.parts:
            yield int(size), Explained(f"{entry.name}: {name}", f"{int(size):,} bytes")


def _weights(arch: Arch, widths: tuple[int, ...]) -> Iterator[tuple[float, Explained]]:
    """Each weight of another size: itself, its gradient or one of its states."""
    seen: set[int] = set()
    for weight in arch.weights():
        if weight.numel in seen:
            continue
        seen.add(weight.numel)
        shape = " × ".join(f"{one:,}" for one in weight.shape)
        for width in widths:
            name = f"{weight.name}, its gradient or a state of it"
            words = f"{shape} × {WIDTHS[width]}"
            yield weight.numel * width, Explained(name, words, of_weight=True)


def _by_tokens(figure: Figure, arch: Arch) -> Iterator[Explained]:
    """The tokens that logits would have, for a size that no tensor of the run has."""
    for width in (4, 2):
        tokens = round(figure.value / (arch.vocab * width))
        if LEAST_TOKENS <= tokens <= MOST_TOKENS and is_size(figure, tokens * arch.vocab * width):
            about = "about " * (figure.step > arch.vocab * width)
            words = f"{about}{tokens:,} tokens × {arch.vocab:,} logits × {WIDTHS[width]}"
            yield Explained("logits", words, exact=False, tokens=tokens)
