"""The stream of a rank of FSDP version 1: freed blocks that the GPU has yet to finish with.

A gathered parameter is allocated on one CUDA stream and read by forward on another. The views of it
are taken on the first one, so autograd copies the gradients into the flat one there, and that is
reduced on a third one. `record_stream` keeps a block that another stream reads after its free until
the GPU has come so far. In backward a gathered parameter is freed on its own stream, and not kept.

The host runs ahead of the GPU. With `limit_all_gathers` it waits before a gather for the last but
one free of a gathered parameter (torch 2.13 D/_runtime_utils.py:290 _unshard, _limiter_utils.py).
It always waits at the end of a phase. Where memory is short, the allocator waits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from .....ledger.ledger import GATHERED, RECORDED, Ledger
from .....pytorch.replay.stream import UNTIL_MARK
from .....run.phases import FORWARD
from ....step.stream_phases import Phase
from ....step.stream_writer import StreamWriter

GATHERS = re.compile(r"(^|\.)(forward\.root|gather\.[\w.]+|prefetch|gather|after)$")
ROOT_AGAIN = re.compile(r"(^|\.)loss\.backward(\.prefetch)?$")
IN_FLIGHT = 2  # torch 2.13 D/_limiter_utils.py _max_num_inflight_all_gathers


class FlatStreamWriter(StreamWriter):
    """Writes what any writer does, and which blocks are kept after their free.

    `limited`: `limit_all_gathers` is on.
    """

    limited = True

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.frees: list[int] = []  # the kept tensors up to each free of a gathered parameter
        self.done = 0  # kept tensors that the host has waited for
        self.in_forward = self.root_gathered = False
        self.waits = 0  # gathers of this instant before which the host has not waited yet

    def begin(self, phase: Phase) -> None:
        """A phase begins."""
        self.in_forward = phase.kind == FORWARD

    def visit(self, name: str) -> None:
        """Go to an instant; the host waits before each of its gathers."""
        if ROOT_AGAIN.search(name) and not self.root_gathered:
            self._wait()  # backward asks for the root first, which is gathered already
        self.root_gathered = name.endswith("loss.backward.prefetch")
        self._keep_freed(self.waiting.get(name, ()))  # gradients that were copied
        self.waits = int(bool(GATHERS.search(name)))
        super().visit(name)
        while self.waits:
            self._wait_once()

    def keep(self, index: int, copies: int) -> None:
        """Allocate or free copies of an entry."""
        role = self.entries[index].role
        if role not in (GATHERED, RECORDED):
            super().keep(index, copies)
            return
        before = list(self.held.get(index, ()))
        if role == GATHERED and copies > len(before):
            self._wait_once()
        super().keep(index, copies)
        freed = [tensor for tensors in before[copies:] for tensor in tensors]
        if role == RECORDED or self.in_forward:
            self._keep_freed(freed)
        if freed and role == GATHERED:
            self.frees.append(len(self.stream.uses))

    def mark(self, phase: Phase) -> None:
        """Mark the end of a phase, where the host waits for the GPU."""
        super().mark(phase)
        self.done = len(self.stream.uses)

    def _keep_freed(self, tensors: Iterable[int]) -> None:
        self.stream.uses += [(tensor, -1, UNTIL_MARK) for tensor in tensors]

    def _wait_once(self) -> None:
        if self.waits:
            self.waits -= 1
            self._wait()

    def _wait(self) -> None:
        """Wait for the oldest free of a gathered parameter, where two are in flight."""
        if not self.limited or len(self.frees) < IN_FLIGHT:
            return
        passed, now = self.frees.pop(0), len(self.stream.events)
        uses = self.stream.uses
        for number in range(self.done, passed):
            uses[number] = (uses[number][0], -1, now)
        self.done = max(self.done, passed)


class UnlimitedStreamWriter(FlatStreamWriter):
    """The same without `limit_all_gathers`: the host waits at the end of each phase only."""

    limited = False
