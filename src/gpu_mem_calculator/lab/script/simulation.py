"""Everything that makes a script run without its GPU, in the order in which it is switched on.

The phases (forward, backward, optimizer steps) and the parameters, gradients and optimizer states
of a script, whose model is not known, are found while it runs. Values of tensors that have none are
ones where a script reads them, and true where it checks. Data loaders run in the script's own
process, nothing is saved, and torch.compile compiles nothing: the code runs as it is written, and
the report says so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.optim import optimizer as optim
from torch.utils._pytree import tree_iter
from torch.utils.data import DataLoader

from ...ledger.ledger import OPTIM
from ..trace.attention import AttentionKernels
from ..trace.card import answer, patched, simulated_card
from ..trace.cuda import as_on_cuda
from ..trace.device_names import DeviceNames
from ..trace.huggingface import as_if_real, convertible_modules
from ..trace.memory_kinds import KindWatcher, block_kinds
from ..trace.no_triton import importable_triton
from ..trace.recorder import Recorder
from ..trace.run import phase_of
from .collectives import simulated_collectives
from .host_values import ScriptRecorder
from .libraries import simulated_libraries
from .network import offline
from .recording import Failure, Recording, ScriptInput

NOTE = (
    "torch.compile was not simulated: the code ran uncompiled, which keeps more tensors for "
    "backward than a compiled one"
)


@contextmanager
def uncompiled(simulation: Simulation) -> Iterator[None]:
    """torch.compile returns what it is given."""

    def compile_(model: Any = None, **_: Any) -> Any:
        if model is None:
            return compile_
        if isinstance(model, torch.nn.Module):
            simulation.note(NOTE)
            return model

        @wraps(model)
        def call(*args: Any, **kwargs: Any) -> Any:
            simulation.note(NOTE)  # libraries compile functions that a script may never call
            return model(*args, **kwargs)

        return call

    def compile_module(module: Any, *_: Any, **__: Any) -> None:
        simulation.note(NOTE)

    with patched({torch: {"compile": compile_}, torch.nn.Module: {"compile": compile_module}}):
        yield


class StateWatcher(KindWatcher):
    """The kinds of the blocks of every module that is called and every optimizer that steps."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self.roots: dict[int, Any] = {}  # modules that no other module called
        self.optimizers: dict[int, Any] = {}
        self.on_first_module: Callable[[], None] = lambda: None

    def mark(self, name: str) -> None:
        """End a phase, and set the kind of every block that is a state."""
        self.recorder.mark(name)
        for root in self.roots.values():
            self._set_module(root)
        for optimizer in self.optimizers.values():
            for parameter, states in optimizer.state.items():
                for value in tree_iter((parameter, states)):
                    if isinstance(value, torch.Tensor):
                        self._set_kind(value, OPTIM, "")

    def parameters(self) -> list[Any]:
        """Every parameter of the modules that were called, once."""
        every = (p for root in self.roots.values() for p in root.parameters())
        return list({id(p): p for p in every}.values())

    def _on_outermost(self, module: Any) -> None:
        if id(module) in self._names:
            return
        if any(True for _ in module.parameters()):
            self.roots[id(module)] = module
            for name, part in module.named_modules():
                self._names.setdefault(id(part), name)
            self.on_first_module()


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
            replaced = {"_engine_run_backward": engine}
            with patched({torch.autograd: replaced, torch.autograd.graph: replaced}):
                yield
        finally:
            hook.remove()


@contextmanager
def readable(recorder: ScriptRecorder) -> Iterator[None]:
    """`numpy`, `tolist` and their like work on fake tensors; parameters are always fake."""
    numpy, tolist, formats = torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__format__
    new = torch.nn.Parameter.__new__

    def real(tensor: Any) -> Any:
        """A real tensor of the same shape and dtype."""
        if not isinstance(tensor, FakeTensor):
            return tensor
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            one = recorder._scalar(tensor) if tensor.dtype == torch.bool else 1
            return torch.full(tuple(tensor.shape), one, dtype=tensor.dtype, device="cpu")

    def parameter(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if type(data) in (torch.Tensor, torch.nn.Parameter) and data.device.type == "cpu":
            data = recorder.faked(data)
        return new(cls, data, requires_grad)

    def step(scaler: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        return optimizer.step(*args, **kwargs)  # the fake gradients are finite

    def formatted(tensor: Any, text: str) -> str:
        one = isinstance(tensor, FakeTensor) and tensor.dim() == 0
        return format(tensor.item(), text) if one else formats(tensor, text)

    replaced: dict[Any, dict[str, Any]] = {
        torch.Tensor: {
            "__format__": formatted,
            "numpy": lambda t, **kw: numpy(real(t), **kw),
            "tolist": lambda t: tolist(real(t)),
            "__array__": lambda t, dtype=None: numpy(real(t).detach()),
        },
        torch.nn.Parameter: {"__new__": staticmethod(parameter)},
        torch.amp.GradScaler: {"_maybe_opt_step": step},
    }
    with patched(replaced):
        yield


ALONE: dict[str, Any] = {
    "num_workers": 0,
    "pin_memory": False,
    "timeout": 0,
    "multiprocessing_context": None,
    "prefetch_factor": None,
    "persistent_workers": False,
}
"""Workers and page-locked memory are the host's: they change nothing on the GPU."""


@contextmanager
def one_process() -> Iterator[None]:
    """Every DataLoader loads in this process."""
    make = DataLoader.__init__
    signature = inspect.signature(make)

    def init(loader: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(loader, *args, **kwargs).arguments
        del given["self"]
        make(loader, **{**given, **ALONE})

    with patch.object(DataLoader, "__init__", init):
        yield


@contextmanager
def nothing_saved() -> Iterator[None]:
    """torch.save and safetensors write no file."""

    import safetensors.torch

    files = dict.fromkeys(("save_file", "save_model"), answer(None))
    with patched({torch: {"save": answer(None)}, safetensors.torch: files}):
        yield


DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def run_words(parameters: Iterable[Any], optimizers: Iterable[Any]) -> list[str]:
    """Dtypes of the parameters, and the names of the optimizers."""
    dtypes = sorted({str(p.dtype).removeprefix("torch.") for p in parameters})
    words = [f"{' and '.join(DTYPES.get(name, name) for name in dtypes)} weights"]
    return words + sorted({type(one).__name__ for one in optimizers})


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
        return Recording(
            stream=recorder.recorded(),
            makers=recorder.makers,
            kinds=block_kinds(self.watch, phase_of(recorder)),
            steps=min(self.steps.counts.values()),
            num_parameters=sum(p.numel() for p in parameters),
            num_trained=sum(p.numel() for p in parameters if p.requires_grad),
            words=run_words(parameters, self.watch.optimizers.values()),
            engine=self.engine,
            notes=[*self.notes, *self.kernels.notes()],
        )


@contextmanager
def simulated(plan: ScriptInput, finish: Callable[[Recording], Any]) -> Iterator[Simulation]:
    """Make torch and the libraries behave as on the plan's GPU; undone at the end."""
    simulation = Simulation(plan, finish)
    recorder, card = simulation.recorder, plan.card
    with simulation.stack as stack:
        for context in (
            offline(),
            importable_triton(),
            as_if_real(),
            convertible_modules(),
            as_on_cuda(card.compute_capability, simulation.kernels),
            torch.autograd.set_multithreading_enabled(False),
            simulated_card(card, recorder),
            simulated_collectives(plan),
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
