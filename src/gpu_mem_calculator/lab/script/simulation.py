"""Everything that makes a script run without its GPU, in the order in which it is switched on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ..trace.attention import AttentionKernels
from ..trace.cuda import as_on_cuda
from ..trace.device_names import DeviceNames
from ..trace.huggingface import as_if_real
from ..trace.memory_kinds import block_kinds
from ..trace.modules import convertible_modules
from ..trace.run import phase_of
from .card import Card, simulated_card
from .collectives import simulated_collectives
from .compiled import uncompiled
from .data_loading import one_process
from .fake_values import readable
from .host_values import ScriptRecorder
from .libraries import simulated_libraries
from .network import offline
from .no_triton import importable_triton
from .recording import Failure, Recording, ScriptInput
from .saving import nothing_saved
from .states import StateWatcher
from .steps import ScriptSteps
from .words import run_words

NO_STEP = "ended without an optimizer step"


class Simulation:
    """The recorder of a script, its phases, and what is noted about it."""

    def __init__(self, plan: ScriptInput, finish: Callable[[Recording], Any]) -> None:
        self.plan, self.finish = plan, finish
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.recorder = ScriptRecorder(plan.cublas_bytes, self.mode)
        self.watch = StateWatcher(self.recorder)
        self.kernels = AttentionKernels()
        self.steps = ScriptSteps(self.watch, plan.steps, lambda: finish(self.recording()))
        self.notes: list[str] = []
        self.stack = ExitStack()  # what is undone at the end
        self.engine = "pytorch_ddp"

    def note(self, sentence: str) -> None:
        """Add a sentence to the report, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute until the end."""
        self.stack.enter_context(patch.object(owner, name, value))

    def outcome(self) -> Recording | Failure:
        """The recording of a script that ended by itself."""
        if not self.steps.counts:
            why = "does it train with these arguments?"
            return Failure(sentence=f"{self.plan.target} {NO_STEP}; {why}")
        made = min(self.steps.counts.values())
        if made < self.plan.steps:
            self.note(f"The script ended after {made} of {self.plan.steps} optimizer steps.")
        return self.recording()

    def recording(self) -> Recording:
        """What was recorded so far."""
        recorder, parameters = self.recorder, self.watch.parameters()
        if len(recorder.events) > recorder.marks[-1][0]:
            recorder.marks[-1] = (len(recorder.events), recorder.marks[-1][1])
        stream = recorder.recorded()
        return Recording(
            sizes=stream.sizes,
            events=stream.events,
            streams=stream.streams,
            marks=stream.marks,
            empties=stream.empties,
            makers=recorder.makers,
            kinds=block_kinds(self.watch, phase_of(recorder)),
            steps=min(self.steps.counts.values()),
            num_parameters=sum(p.numel() for p in parameters),
            num_trained=sum(p.numel() for p in parameters if p.requires_grad),
            words=run_words(parameters, self.watch.optimizers.values(), recorder),
            engine=self.engine,
            notes=[*self.notes, *self.kernels.notes()],
        )


@contextmanager
def simulated(plan: ScriptInput, finish: Callable[[Recording], Any]) -> Iterator[Simulation]:
    """Make torch and the libraries behave as on the plan's GPU; undone at the end."""
    simulation = Simulation(plan, finish)
    recorder, card = simulation.recorder, Card(**plan.card)  # type: ignore[arg-type]
    with simulation.stack as stack:
        for context in (
            offline(),
            importable_triton(),
            as_if_real(),
            convertible_modules(),
            as_on_cuda(card.compute_capability, simulation.kernels),
            torch.autograd.set_multithreading_enabled(False),
            simulated_card(card, recorder),
            simulated_collectives(plan, simulation),
            uncompiled(simulation),
            one_process(),
            nothing_saved(),
            simulated_libraries(simulation),
            readable(recorder),
            simulation.watch.modules(),
            recorder.recording(),
            simulation.steps.watching(),
            DeviceNames(recorder.sides).everywhere(),
        ):
            stack.enter_context(context)
        yield simulation
