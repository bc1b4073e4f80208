"""Memory of a server on one rank when it has started, and the sequences that its pool holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

from msgspec import Struct

from ..ledger.formula import Formula, Term, product
from ..ledger.ledger import ACT, CACHE, GPU, PARAM, RUNTIME, TEMP, Entry, Instant, Ledger
from ..ledger.num import sized
from ..ledger.source import Source
from .phases import STARTUP
from .run import Run
from .server_host import ServerHost

NamedBytes = tuple[str, int, str]  # a part of what is outside torch: name, bytes, source
SERVE = "serve"
LOADED = Instant(name="load", phase=STARTUP, title="start-up: weights loaded")
PROFILED = Instant(name="profile", phase=STARTUP, title="start-up: profiling")
SERVING = Instant(name="serve", phase=SERVE, title="serving, the cache full")
INSTANTS = (LOADED, PROFILED, SERVING)
FROM_LOADING = {LOADED.name: 1, PROFILED.name: 1, SERVING.name: 1}
FROM_PROFILING = {PROFILED.name: 1, SERVING.name: 1}
FROM_SERVING = {SERVING.name: 1}
# The figures of a server, each the sum of some entries of the ledger.
WEIGHTS, ACTIVATION, NON_TORCH, GRAPHS, POOL = "weights", "activation", "non_torch", "graph", "pool"
OTHERS = "other processes"  # an item of what they hold, where a server counts it in its share
PLACEHOLDER = "MODEL"  # the model in the commands that engines give
# In the place of a model that must be quantized before the server loads it.
CHECKPOINT = re.compile(r"\bPATH-OF-AN?-([A-Z0-9_]+)-CHECKPOINT\b(?:\.gguf)?")
SPOKEN_VOWELS = "AEFHILMNORSX"  # letters whose names begin with a vowel
# Keys of a run file that most servers read, and their defaults; None: the server chooses.
COMMON_OPTIONS: dict[str, Any] = {
    **dict.fromkeys(("batch_size", "prompt_len", "new_tokens", "max_seq_len")),
    "dtype": "bf16",
    "quantization": "none",
    "kv_cache_dtype": "auto",
    "tensor_parallel_size": 1,
}


def server_options(unset: str, **own: Any) -> dict[str, Any]:
    """The keys that a run file may set of a server, and their defaults: None for those in `unset`,
    where the server chooses or the feature is off.
    """
    return COMMON_OPTIONS | dict.fromkeys(unset.split()) | own


def left_open(options: Mapping[str, Any], **taken: Any) -> dict[str, Any]:
    """Of what a server takes, the keys that a run leaves to it."""
    return {key: value for key, value in taken.items() if options.get(key) is None}


def checkpoint_word(run: Run, online: Container[str] = ()) -> str:
    """The model in a server's command; a placeholder in plain words where its weights must be
    quantized before, which `online` formats need not be.
    """
    name = str(run.options["quantization"] or "none")
    if run.quantized or name == "none" or name in online:
        return PLACEHOLDER
    title = name.upper()
    return f"PATH-OF-A{'N' * (title[0] in SPOKEN_VOWELS)}-{title}-CHECKPOINT"


def checkpoint_note(command: str) -> str:
    """A sentence on the checkpoint that a server's command leaves to the user; empty where it has
    the model itself.
    """
    found = CHECKPOINT.search(command)
    if found is None:
        return ""
    return f"{found[0]}: a copy of the model that is already {found[1]}"


class ServerItem(Struct, frozen=True):
    """Bytes of a server and the figure that they are part of; `formula` is for people to read."""

    figure: str
    name: str
    bytes: int
    source: Source
    formula: Formula = ""
    parts: tuple[tuple[str, int], ...] = ()
    place: str = GPU


def counted(
    figure: str, name: str, source: Source, *factors: int | Term | list[Term]
) -> ServerItem:
    """An item whose bytes are a product."""
    size, formula = product(*factors)
    return ServerItem(figure, name, size, source, formula)


KINDS = {WEIGHTS: PARAM, ACTIVATION: ACT, NON_TORCH: RUNTIME, GRAPHS: TEMP, POOL: CACHE}
ALIVE = {
    WEIGHTS: FROM_LOADING,
    ACTIVATION: FROM_PROFILING,
    NON_TORCH: FROM_PROFILING,
    GRAPHS: FROM_SERVING,
    POOL: FROM_SERVING,
}


class ServerMemory(Struct, frozen=True, kw_only=True, dict=True):
    """One rank of a server.

    - `items`: all its memory, the cache's pool included.
    - `tokens`: tokens of its cache, as the server reports them; `token_bytes`: bytes of one more
      token of a sequence.
    - `sequence_bytes(context)`: bytes of one sequence in the pool, with its pages and states.
    - `on_host`: bytes of a cache in host RAM, instead of a pool.
    - `most_sequences`: the most that the server runs at once, with any pool.
    - `needs_bytes`: the least memory of a GPU on which it starts and serves one sequence of
      `max_seq_len`, with what is outside torch (`outside`: context, libraries).
    - `problem`: a sentence that says why it would not start; "" where it does.
    - `layers_on_gpus` of `layers`: of a server that leaves others on the host, and
      `partial_layers`, of which it leaves some weights there; `spills`: by its own choice,
      because its GPUs are too small.
    - `command`: the words of the command that starts the server with this run.
    - `notes`: sentences for the user.
    - `host`: what it takes of its host beside the items in host RAM; None: a checkpoint's pages.
    - `chosen`: keys of the run file that were left to the server, with what it takes at its release
      on this card.
    - `largest_context()`: the longest `max_seq_len` that fits, of engines whose cache has a fixed
      size.
    """

    items: tuple[ServerItem, ...]
    tokens: int
    token_bytes: int
    max_seq_len: int
    most_sequences: int
    sequence_bytes: Callable[[int], int]
    needs_bytes: int
    on_host: int = 0
    outside: tuple[NamedBytes, ...] = ()
    problem: str = ""
    layers_on_gpus: int | None = None
    layers: int | None = None
    partial_layers: int = 0
    spills: bool = False
    command: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    chosen: Mapping[str, Any] = {}
    largest_context: Callable[[], int] | None = None
    host: ServerHost | None = None

    def figure(self, name: str) -> int:
        """Bytes on the GPU of the items of one figure."""
        return sum(i.bytes for i in self.items if i.figure == name and i.place == GPU)

    @property
    def others_bytes(self) -> int:
        """Of its items what other processes hold, where the server deducts that from its share."""
        return sum(i.bytes for i in self.items if i.name == OTHERS)

    @property
    def pool_bytes(self) -> int:
        """Bytes of the pool for the cache."""
        return self.figure(POOL)

    @property
    def room_bytes(self) -> int:
        """Bytes for sequences: the pool, or the cache in host RAM."""
        return self.pool_bytes or self.on_host

    def sequences(self, context: int) -> float:
        """How many sequences of `context` tokens the pool holds at once."""
        each = self.sequence_bytes(context)
        return self.room_bytes / each if each else float(self.most_sequences)

    @property
    def longest_context(self) -> int:
        """Tokens of the longest single sequence that the pool holds, at most `max_seq_len`."""
        low, high = 0, self.max_seq_len
        while low < high:
            middle = (low + high + 1) // 2
            if self.sequence_bytes(middle) <= self.room_bytes:
                low = middle
            else:
                high = middle - 1
        return low

    @property
    def ledger(self) -> Ledger:
        """The items as a ledger like that of training."""
        return Ledger(INSTANTS, tuple(_entries(self.items)))


def _entries(items: Iterable[ServerItem]) -> Iterable[Entry]:
    for item in items:
        yield Entry(
            name=item.name,
            kind=KINDS[item.figure],
            bytes=sized(max(0, item.bytes), 8),
            live=ALIVE[item.figure],
            source=item.source,
            parts=item.parts,
            place=item.place,
            formula=item.formula,
        )
