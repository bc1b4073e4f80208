"""The phases of a script, found while it runs: forward, backward and optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.optim import optimizer as optim

from .states import StateWatcher


class ScriptSteps:
    """Marks the phases; calls `done` once every optimizer has made `steps` steps.

    A phase of forward ends where backward begins. The first call of a module ends start-up.
    """

    def __init__(self, watch: StateWatcher, steps: int, done: Callable[[], None]) -> None:
        self.watch, self.steps, self.done = watch, steps, done
        self.counts: dict[int, int] = {}  # optimizer -> its steps
        self.backwards = self.step = 0
        self._micro = 0
        self._stepped = False

    def begin(self) -> None:
        """End start-up, once."""
        if not self.watch.recorder.marks:
            self.watch.mark("model")

    def backward_begins(self) -> None:
        """End a forward pass."""
        self.begin()
        if self._stepped:
            self._stepped, self.step, self._micro = False, self.step + 1, 0
        self.watch.mark(f"s{self.step}.a{self._micro}.fwd")

    def backward_ends(self) -> None:
        """End a backward pass."""
        self.watch.mark(f"s{self.step}.a{self._micro}.bwd")
        self.backwards += 1
        self._micro += 1

    def optimizer_stepped(self, optimizer: Any, *_: Any) -> None:
        """End an optimizer step; optimizers that follow without a backward belong to the same."""
        if not self.backwards:
            return
        self.watch.optimizers[id(optimizer)] = optimizer
        self.watch.recorder.marks[:] = [
            mark for mark in self.watch.recorder.marks if mark[1] != f"s{self.step}.opt"
        ]
        self.watch.mark(f"s{self.step}.opt")
        self._stepped = True
        self.counts[id(optimizer)] = self.counts.get(id(optimizer), 0) + 1
        if self.steps and min(self.counts.values()) >= self.steps:
            self.done()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Find the phases of what runs inside."""
        run, depth = torch.autograd._engine_run_backward, 0

        def engine(*args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            depth += 1
            try:
                if depth == 1:
                    self.backward_begins()
                result = run(*args, **kwargs)
                if depth == 1:
                    self.backward_ends()
                return result
            finally:
                depth -= 1

        hook = optim.register_optimizer_step_post_hook(self.optimizer_stepped)
        self.watch.on_first_module = self.begin
        try:
            with (
                patch.object(torch.autograd, "_engine_run_backward", engine),
                patch.object(torch.autograd.graph, "_engine_run_backward", engine),
            ):
                yield
        finally:
            hook.remove()
