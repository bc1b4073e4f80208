"""What phases of a run take of a GPU and of a node's memory, and whether the node has it.

A node's memory is compared with what cannot be taken back: processes, and what is pinned. Pages of
mapped files are counted apart, since the kernel takes them back.
"""

from __future__ import annotations

from msgspec import Struct

from ..ledger.units import GIB, gib
from ..run.phases import (
    ASLEEP,
    CAPTURE,
    DECODE,
    EVALUATION,
    GENERATING,
    LOADING,
    MERGING,
    MERGING_ON_HOST,
    PREFILL,
    PROFILING,
    RESUMING,
    SAVING,
    SAVING_MERGED,
    SAVING_OPTIMIZER,
    SERVING,
    STARTUP,
)
from .fit_verdict import FITS, SHORT, UNSURE

MARGIN = 0.2
"""Of what the host is estimated to take: the worst error that the estimate is held to."""
USUAL = 64 * GIB  # more than this is said where nobody says what the node has
FIRST, STEADY = "first step", "later steps"
# By a phase's name: its title, and when it is.
TITLES = {
    LOADING: "loading the weights",
    SAVING_OPTIMIZER: "saving the optimizer",
    SAVING_MERGED: "saving merged",
    STARTUP: "start-up",
    FIRST: FIRST,
    STEADY: STEADY,
    EVALUATION: "evaluation",
    GENERATING: "generation",
    SAVING: "saving",
    RESUMING: "resuming",
    MERGING: "merging",
    MERGING_ON_HOST: MERGING_ON_HOST,
    PREFILL: "prefill",
    DECODE: "decode",
    PROFILING: "profiling pass",
    CAPTURE: "capture of graphs",
    SERVING: "serving, the cache full",
    ASLEEP: "asleep, at level 1",
}
WHEN = {
    LOADING: "while weights are loaded",
    SAVING_OPTIMIZER: "while the optimizer is saved",
    SAVING_MERGED: "while the merged model is saved",
    STARTUP: "at start-up",
    FIRST: "in the first step",
    STEADY: "in each step",
    EVALUATION: "in the evaluation",
    GENERATING: "while it generates",
    SAVING: "while it is saved",
    RESUMING: "while it is resumed",
    MERGING: "while adapters are merged",
    MERGING_ON_HOST: "while adapters are merged",
    PREFILL: "in prefill",
    DECODE: "while it decodes",
    PROFILING: "in the profiling pass",
    CAPTURE: "while graphs are captured",
    SERVING: "while it serves",
    ASLEEP: "while it sleeps",
}


class PhaseMemory(Struct, frozen=True, kw_only=True):
    """A phase of a run's life, in bytes.

    - gpu_bytes: torch's peak on the busiest GPU
    - host_bytes: of a node, what cannot be taken back; file_bytes: pages of files on it
    - process_bytes: of the first rank's process, with the files' pages
    - disk_bytes: files of the whole job that it reads or writes
    - asked: whether the run does it; else it takes this if it does, and the verdict leaves it out
    """

    name: str
    gpu_bytes: int
    host_bytes: int
    process_bytes: int
    file_bytes: int = 0
    disk_bytes: int = 0
    asked: bool = True


class NodeMemory(Struct, frozen=True, kw_only=True):
    """The memory of a node: the phase that takes most, what it has, and the verdict.

    - bytes_per_node: what cannot be taken back; file_bytes_per_node: pages of files besides
    - node_bytes: what a node has, None where nobody says it; read_from: where it is said
    - verdict: None where it is not known what a node has
    - shared: whether the card has its memory of the same; then all figures are of both
    - pages_bytes: pages of files that must be given back while it starts, where that is open
    """

    bytes_per_node: int
    file_bytes_per_node: int
    phase: str
    node_bytes: int | None = None
    read_from: str = ""
    verdict: str | None = None
    shared: bool = False
    pages_bytes: int = 0

    @property
    def is_large(self) -> bool:
        """Whether it is worth a word on the first screen: it decides, is above half of what a node
        has, or above 64 GiB where that is not known.
        """
        if self.node_bytes is None:
            return self.bytes_per_node > USUAL
        above_half = 2 * self.bytes_per_node > self.node_bytes and not self.shared
        return self.verdict != FITS or above_half

    @property
    def words(self) -> str:
        """`122 GiB of host RAM a node at start-up, of 128 (--mem=128G)`."""
        said = f" ({self.read_from})" if self.read_from else ""
        node = self.node_bytes
        same = (d for d in (0, 1, 2) if gib(self.bytes_per_node, d) != gib(node or 0, d))
        digits = next(same, 3)  # as many as show which of the two is larger
        has = "" if node is None else f", of {gib(node, digits)}{said}"
        when, what = WHEN[self.phase], "for card and host" if self.shared else "of host RAM a node"
        taken = f"{gib(self.bytes_per_node, digits)} GiB {what} {when}{has}"
        if not self.pages_bytes:
            return taken
        return f"{taken}, beside {gib(self.pages_bytes, 0)} GiB of pages of the files that it reads"


class SharedPool(Struct, frozen=True):
    """Of a memory that card and host share what is taken beside torch's peak, and what is open:
    what the system may have more, and pages of files that must be given back at once.
    """

    beside: int
    unsure_bytes: int
    pages: int = 0


def node_memory(
    phases: list[PhaseMemory],
    node_bytes: int | None,
    read_from: str = "",
    pool: SharedPool | None = None,
) -> NodeMemory:
    """The verdict on a node's memory; `pool`: the card has its memory of the same."""

    def taken_by(one: PhaseMemory) -> int:
        return one.host_bytes + (0 if pool is None else one.gpu_bytes + pool.beside)

    most = max((one for one in phases if one.asked), key=taken_by)
    taken = taken_by(most)
    word, kept = None, 0
    if node_bytes is not None:
        open_bytes = 0 if pool is None else pool.unsure_bytes
        word = node_verdict(most.host_bytes, node_bytes - taken + most.host_bytes, open_bytes)
        if word == FITS and pool is not None and pool.pages:
            started = max(one.gpu_bytes for one in phases) + pool.beside + phases[0].host_bytes
            if started + pool.pages > node_bytes:
                word, kept, taken = UNSURE, pool.pages, started
    return NodeMemory(
        bytes_per_node=taken,
        file_bytes_per_node=max(one.file_bytes for one in phases if one.asked),
        phase=STARTUP if kept else most.name,
        node_bytes=node_bytes,
        read_from=read_from if node_bytes is not None else "",
        verdict=word,
        shared=pool is not None,
        pages_bytes=kept,
    )


def node_verdict(taken: int, has: int, open_bytes: int = 0) -> str:
    """Whether a node has what is taken of it; it may have `open_bytes` less."""
    sure = taken * (1 + MARGIN) <= has - open_bytes
    return SHORT if taken > has else FITS if sure else UNSURE


def on_node(word: str, node: NodeMemory | None) -> str:
    """The verdict on a card with that on the memory of its node."""
    if node is None or node.verdict in (None, FITS):
        return word
    return SHORT if SHORT in (word, node.verdict) else UNSURE
