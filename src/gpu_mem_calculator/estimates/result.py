"""The result of an estimate. `*_gb` is GiB (2³⁰ bytes), `*_bytes` an exact integer.

A result for people: a few lines for `print`, one for `repr`; notebooks show more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple

from ..ledger.schema_version import SCHEMA_VERSION
from ..ledger.shown import Drawn
from ..ledger.units import GIB, gib
from ..run.limits import BoundedLimit
from ..run.releases import UserRelease
from ..runfile.inference_config import ServingResult
from .node import NodeMemory, PhaseMemory
from .verdict_words import total_bytes, verdict_line

# Of a breakdown, in its order.
PARTS = ("parameters", "gradients", "optimizer states", "activations", "overhead")


def short_text(result: MemoryResult) -> str:
    """The verdict, the parts at the peak, and what limits the run."""
    parts = ", ".join(f"{name} {gib(size, 2)}" for name, size in part_rows(result))
    return "\n".join(
        [
            verdict_line(result),
            f"  {parts} GiB",
            *(f"  {text}" for text in more_words(result)),
            result.summary,
        ]
    )


def part_rows(result: MemoryResult) -> list[tuple[str, int]]:
    """The parts of the total in bytes."""
    if result.serving is not None:
        serving = result.serving
        return [
            ("weights", serving.weights_bytes),
            ("KV cache", serving.kv_pool_bytes),
            ("activations", serving.activation_bytes),
        ]
    sizes = astuple(result.breakdown)
    return [(name, round(size * GIB)) for name, size in zip(PARTS, sizes, strict=True)]


def more_words(result: MemoryResult) -> Iterator[str]:
    """What a server's cache holds; where training is highest, and where it dies."""
    if result.serving is not None:
        serving = result.serving
        whole = int(serving.max_concurrency)
        length = f"{serving.max_seq_len:,} tokens"
        yield f"{serving.kv_tokens:,} tokens of cache, {whole:,} sequences of {length}"
        return
    yield f"peak: {result.peak_instant}"
    if result.fails_at is not None:
        died = result.fails_at
        where = f"in step {died.step}, {died.phase}" if died.step else "at start-up"
        yield f"out of memory {where}"


def one_line(result: MemoryResult) -> str:
    """The verdict and the total."""
    total, has = gib(total_bytes(result), 2), gib(result.gpu_memory_bytes, 2)
    return f"MemoryResult(verdict={result.verdict!r}, total={total} of {has} GiB per GPU)"


class MemoryBreakdown(Struct, frozen=True, kw_only=True):
    """What the card must have, by what it is for; the parts add up to the whole."""

    model_params_gb: float
    gradients_gb: float
    optimizer_states_gb: float
    activations_gb: float
    overhead_gb: float

    @property
    def total_memory_gb(self) -> float:
        """The sum of the parts."""
        total: float = sum(astuple(self))
        return total


class StageResult(Struct, frozen=True, kw_only=True):
    """One pipeline stage."""

    stage: int
    num_layers: int
    allocated_bytes: int
    peak_phase: str


class PhaseResult(Struct, frozen=True, kw_only=True):
    """One phase of a step: torch's max_memory_allocated and max_memory_reserved."""

    phase: str
    micro_batch: int | None
    peak_bytes: int
    reserved_bytes: int


class StepResult(Struct, frozen=True, kw_only=True):
    """One of the first steps: its peak, the phase that has it, and every phase."""

    step: int
    peak_bytes: int
    peak_phase: str
    phases: list[PhaseResult]


class OutOfMemory(Struct, frozen=True, kw_only=True):
    """Where a run that does not fit runs out of memory; step 0 is start-up."""

    step: int
    phase: str


class OtherCard(Struct, frozen=True, kw_only=True):
    """A card that the name of the run's GPU can also mean, and on which the verdict is another."""

    gpu: str
    title: str
    memory_gb: float
    verdict: str


class LongestBatch(Struct, frozen=True, kw_only=True):
    """The micro-batch with the most tokens: its sequences, the tokens of each, and its step."""

    sequences: int
    tokens: int
    step: int


class ReserveSpread(Struct, frozen=True, kw_only=True):
    """What torch reserves over the orders that were drawn."""

    low_bytes: int
    median_bytes: int
    high_bytes: int


class OtherReserve(Struct, frozen=True, kw_only=True):
    """What torch reserves after the same steps with another setting."""

    setting: str
    reserved_after_bytes: int


class LengthsResult(Struct, frozen=True, kw_only=True):
    """Batches that differ in length.

    - tokens: of the longest batch
    - steps: how many were replayed, one after the other; run_steps: of the run; epoch_steps: of
      an epoch, None where the data set's size is not known
    - orders: how many were drawn; known: it is the run's own
    - reserved_after_bytes: what torch reserves after the steps with enough memory; of several
      orders, of the one that is shown
    - probability_to_die: the share of orders that run out of memory on the card
    - instead: what other settings change
    """

    longest_batch: LongestBatch
    tokens: int
    steps: int
    run_steps: int
    epoch_steps: int | None
    orders: int
    known: bool
    reserved_after_bytes: int
    spread: ReserveSpread
    probability_to_die: float
    instead: list[OtherReserve]


class MemoryResult(Drawn, Struct, frozen=True, kw_only=True):
    """The answer: four numbers that are never mixed up, the verdict, and the parts.

    - `allocated_bytes`: the most that tensors take at once in a step, on the busiest rank;
      torch's max_memory_allocated. `startup_bytes` is the same while the model is set up.
    - `reserved_bytes`: what torch reserves for that on a GPU with more memory than it needs;
      max_memory_reserved. `reserved_on_card_bytes` is the same on this card, None where the run
      does not survive on it.
    - `needs_bytes`: the least that torch must be given for start-up and steps to survive.
      `margin_bytes` is what must be added to be sure that they do.
    - `device_bytes`: what nvidia-smi shows: reserved_on_card_bytes (reserved_bytes where that is
      None) and what CUDA takes outside torch, `outside_torch_bytes`; pages of a paged optimizer as
      far as the card has room, the others are on the host.
    - `card_low_bytes`, `card_high_bytes`: what a card must have at least, and with what the run is
      certain to fit. By a replay they are the margin apart; without one they are the tensors, and
      1.5 times their highest instant, what is outside torch included.

    What is reserved, needed and on the device comes from a replay of torch's allocator, and is None
    where nothing was replayed. The total is needs_bytes, margin_bytes and outside_torch_bytes;
    where nothing was replayed, allocated_bytes and the last. `verdict` is `fits`, `does_not_fit` or
    `cannot_tell`
    (within the margin, not replayed, or something in `limits` could decide); `summary` is the
    answer in one line, made to be pasted, and `subject` what it begins with: model, tool, cards;
    `decisive` is what is assumed and could turn the verdict; `versions`
    the releases that somebody says, by package; `other_cards` those that the
    GPU's name can mean, too, where they turn it. `headroom_bytes` is what the card has beyond
    the total, negative where it is short; `held_bytes` is what others hold of the GPU, beside
    `gpu_memory_bytes`; `spills_bytes` what Windows' driver puts into the host's memory, with which
    a run that does not fit goes on. `phases` are those of the run's life, from loading on;
    `host` is the verdict on the memory of a node, and `host_bytes_per_node` its figure. `steps` are
    the first steps, as the replay has them: optimizer states exist from the end of the first.
    `lengths` are the batches where they differ; then `steps` has all that were replayed.
    `fails_at` is where a run that does not fit runs out of memory. `schema_version` is that of
    these fields, to which a version only adds; `version` is the same.
    """

    total_memory_per_gpu_gb: float
    total_memory_all_gpus_gb: float
    cpu_memory_gb: float
    fits_on_gpu: bool
    verdict: str
    headroom_bytes: int
    memory_utilization_percent: float
    breakdown: MemoryBreakdown
    allocated_bytes: int
    startup_bytes: int | None
    reserved_bytes: int | None
    reserved_on_card_bytes: int | None
    needs_bytes: int | None
    margin_bytes: int | None
    device_bytes: int | None
    outside_torch_bytes: int
    gpu_memory_bytes: int
    host_bytes_per_node: int
    disk_bytes_per_node: int
    peak_phase: str
    peak_instant: str
    num_parameters: int
    trainable_parameters: int
    busiest_stage: int
    stages: list[StageResult]
    timeline: list[dict[str, Any]]
    assumed: list[str]
    warnings: list[str]
    run: dict[str, Any]
    serving: ServingResult | None = None  # where a server has a pool for its cache
    steps: list[StepResult] = []
    fails_at: OutOfMemory | None = None
    limits: list[BoundedLimit] = []
    decisive: list[str] = []
    versions: dict[str, UserRelease] = {}
    other_cards: list[OtherCard] = []
    phases: list[PhaseMemory] = []
    host: NodeMemory | None = None  # of training
    lengths: LengthsResult | None = None
    held_bytes: int = 0
    spills_bytes: int = 0
    card_low_bytes: int = 0
    card_high_bytes: int = 0
    subject: str = ""
    summary: str = ""
    version: int = SCHEMA_VERSION
    schema_version: int = SCHEMA_VERSION

    @property
    def figures_fit(self) -> bool:
        """Whether what is modelled fits, all of it on the GPUs; `limits` may add to it."""
        return self.headroom_bytes >= 0 and self.verdict != "does_not_fit" and not self.spills

    @property
    def spills(self) -> bool:
        """Whether a server leaves layers on the host because its GPUs are too small."""
        return self.serving is not None and self.serving.keeps_fewer

    def __str__(self) -> str:
        """The verdict and the parts in a few lines."""
        return short_text(self)

    def __repr__(self) -> str:
        """The verdict and the total in one line."""
        return one_line(self)
