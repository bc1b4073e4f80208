"""Who is served next: clients take turns, and none of them has every process of a lane."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from typing import Generic, TypeVar

Waiter = TypeVar("Waiter")


class FairQueue(Generic[Waiter]):
    """Waiters by client; each client may have at most `share` processes at the same time."""

    def __init__(self, share: int) -> None:
        self.share = share
        self._turns: OrderedDict[str, deque[Waiter]] = OrderedDict()
        self._running: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many wait."""
        return sum(map(len, self._turns.values()))

    def add(self, client: str, waiter: Waiter) -> None:
        """Append a waiter to those of its client."""
        self._turns.setdefault(client, deque()).append(waiter)

    def discard(self, client: str, waiter: Waiter) -> None:
        """Remove a waiter that no longer waits."""
        waiters = self._turns.get(client, deque())
        if waiter in waiters:
            waiters.remove(waiter)
        if not waiters:
            self._turns.pop(client, None)

    def start_next(self) -> Waiter | None:
        """The first waiter of the client whose turn it is; it now runs. None where none may."""
        free = (name for name in self._turns if self._running[name] < self.share)
        client = next(free, None)
        if client is None:
            return None
        waiter = self._turns[client].popleft()
        self._turns.move_to_end(client)
        self.discard(client, waiter)
        self._running[client] += 1
        return waiter

    def end(self, client: str) -> None:
        """A task of the client has ended."""
        self._running[client] -= 1
        self._running += Counter()  # without clients that have no task
