"""What a server holds on one rank once it is up, and how many sequences its cache has room for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from ..ledger.ledger import ACT, CACHE, GPU, PARAM, RUNTIME, TEMP, Entry, Instant, Ledger
from ..ledger.source import Source
from .phases import STARTUP

NamedBytes = tuple[str, int, str]  # a part of a process outside torch: name, bytes, source
SERVE = "serve"
LOADED = Instant(name="load", phase=STARTUP, title="start-up: weights loaded")
PROFILED = Instant(name="profile", phase=STARTUP, title="start-up: trial run")
SERVING = Instant(name="serve", phase=SERVE, title="serving, the cache full")
INSTANTS = (LOADED, PROFILED, SERVING)
ALWAYS = {LOADED.name: 1, PROFILED.name: 1, SERVING.name: 1}
RUNNING = {PROFILED.name: 1, SERVING.name: 1}
LATER = {SERVING.name: 1}
# What a serving figure is made of: which entries of the ledger add up to it.
WEIGHTS, ACTIVATION, NON_TORCH, GRAPHS, POOL = "weights", "activation", "non_torch", "graph", "pool"


class ServerItem(Struct, frozen=True, kw_only=True):
    """Bytes of a server, and the figure they belong to. `formula` is read by people."""

    figure: str
    name: str
    bytes: int
    source: Source
    formula: str = ""
    parts: tuple[tuple[str, int], ...] = ()
    place: str = GPU


KINDS = {WEIGHTS: PARAM, ACTIVATION: ACT, NON_TORCH: RUNTIME, GRAPHS: TEMP, POOL: CACHE}
ALIVE = {WEIGHTS: ALWAYS, ACTIVATION: RUNNING, NON_TORCH: RUNNING, GRAPHS: LATER, POOL: LATER}


class ServerMemory(Struct, frozen=True, kw_only=True, dict=True):
    """One rank of a server.

    - `items`: everything it holds, the pool of the cache among them.
    - `tokens`: what the server says its cache holds; `token_bytes`: one token more of a sequence.
    - `sequence_bytes(context)`: what one sequence takes of the pool, pages and states included;
      of `on_host` where the cache lies in the host's memory.
    - `most_sequences`: how many the server runs at once, whatever the room.
    - `needs_bytes`: the least memory of a card on which it starts and serves one sequence of
      `max_seq_len`, what is outside (`outside`: context, libraries) included.
    - `problem`: why it would not start, in a sentence; empty where it does.
    - `command`: the words that start the server like this.
    - `notes`: what the user should know, a sentence each.
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
    command: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def figure(self, name: str) -> int:
        """The sum of the items of one figure on the GPU."""
        return sum(i.bytes for i in self.items if i.figure == name and i.place == GPU)

    @property
    def pool_bytes(self) -> int:
        """What the cache is given."""
        return self.figure(POOL)

    @property
    def room_bytes(self) -> int:
        """Where sequences lie: the pool, or the host's memory."""
        return self.pool_bytes or self.on_host

    def sequences(self, context: int) -> float:
        """How many sequences of so many tokens the pool holds at once."""
        each = self.sequence_bytes(context)
        return self.room_bytes / each if each else float(self.most_sequences)

    @property
    def longest_context(self) -> int:
        """The longest single sequence that the pool holds, not more than the model takes."""
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
        """The same on the ledger that training has."""
        return Ledger(INSTANTS, tuple(_entries(self.items)))


def _entries(items: Iterable[ServerItem]) -> Iterable[Entry]:
    for item in items:
        yield Entry(name=item.name, kind=KINDS[item.figure], bytes=max(0, item.bytes),
                    live=ALIVE[item.figure], source=item.source, parts=item.parts,
                    place=item.place, formula=item.formula)  # fmt: skip
