"""Runs a module once on fake tensors and records the events of its parts: see run/record.py.

A record counts every parameter once: a module where that cannot be is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from math import prod
from typing import Any

import torch
from torch.utils._pytree import tree_iter, tree_map

from ...pytorch.replay.rounding import block_bytes
from ...run.record import ModuleRecord, arithmetic
from ...runfile.resolve.resolved_run import ResolvedRun
from ...runfile.text.errors import InputError
from ...training.step.workspaces import run_cublas_bytes
from ..jobs.model import layers, loss_of, torch_dtype
from .attention import AttentionKernels
from .module_parts import ModuleParts, split_module
from .recorded_run import BACK, ONCE, STEP, RecordedRun, with_marks
from .recorder import CUBLAS, CUBLAS_LT, Recorder, memory_owners
from .run import simulated_gpu
from .storages import StorageMaker


def check_layers(model: Any, stack: list[Any], title: str) -> None:
    """Raise for a module without a list of layers, or with a weight that has two names."""
    if not stack:
        fix = "put them into a torch.nn.ModuleList or a torch.nn.Sequential"
        raise InputError(f"{title}: the module has no list of layers; {fix}")
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        other = names.setdefault(id(parameter), name)
        if other != name:
            why = "whose gradients wait for each other; trace it, or untie them"
            raise InputError(f"{title}: {other} and {name} are one weight, {why}")


def check_count(model: Any, parts: ModuleParts, title: str) -> None:
    """Raise where the parts have another number of parameters than the module trains."""
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    every_part = (parts.before, *(parts.layers[n] for n in parts.order), parts.after)
    counted = sum(prod(shape) for part in every_part for _, shape in part.weights)
    if counted != trained:
        counts = f"its layers run with {counted:,} parameters and it trains {trained:,}"
        why = "a module that several layers call has no layer to be counted in; trace it"
        raise InputError(f"{title}: {counts}; {why}")


Build = Callable[[], tuple[Any, Any]]


def record(build: Build, resolved: ResolvedRun, title: str) -> ModuleRecord:
    """The record of a module in the arithmetic (precision and autocast) of a run.

    `build` returns the model and a batch.
    """
    run, recorder = resolved.run, Recorder(run_cublas_bytes(resolved.run))
    precision = arithmetic(resolved.engine.name, run.precision, run.options, run.autocast)
    with simulated_gpu(resolved, AttentionKernels()), recorder.recording():
        model, batch = _build_in(build, precision)
        stack = layers(model)
        check_layers(model, stack, title)
        watch = ModuleWatcher(recorder, model, stack)
        with watch.hooks():
            with torch.no_grad():
                watch.run(batch, ONCE, precision)
            watch.run(batch, STEP, precision)
        recorded = watch.recorded_run()
    parts = split_module(recorded)
    check_count(model, parts, title)
    rows, width = watch.shape
    return ModuleRecord(
        title=title,
        arithmetic=precision,
        compute_capability=run.compute_capability,
        batch=_samples(batch),
        batch_bytes=watch.batch_bytes(batch),
        tokens=rows // _samples(batch),
        width=width,
        before=parts.before,
        layers=parts.layers,
        order=parts.order,
        after=parts.after,
        prefix=recorded.stack[0].rpartition(".")[0],
        buffers=_bits(model.named_buffers()),
        held=parts.held,
        kept=parts.kept,
        frozen=_bits((name, p) for name, p in model.named_parameters() if not p.requires_grad),
        unused=tuple(recorded.unused),
        biases=watch.biases(),
    )


def _build_in(build: Build, precision: str) -> tuple[Any, Any]:
    """The model and its batch, in the dtype of the arithmetic."""
    model, batch = build()
    model.train()
    what, dtype = precision.partition("_")[2], torch_dtype(precision)
    if precision == "fp32" or what == "autocast":
        return model, batch
    if what == "weights":
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
    else:
        model.to(dtype)
    return model, tree_map(lambda one: one.to(dtype) if _floats(one) else one, batch)


def _floats(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _autocast(precision: str) -> Any:
    autocast = precision.endswith("_autocast")
    return torch.autocast("cpu", dtype=torch_dtype(precision)) if autocast else nullcontext()


def _tensors(batch: Any) -> list[torch.Tensor]:
    return [one for one in tree_iter(batch) if isinstance(one, torch.Tensor)]


def _samples(batch: Any) -> int:
    tensors = _tensors(batch)
    return int(tensors[0].shape[0]) if tensors and tensors[0].ndim else 1


def _bits(tensors: Iterable[tuple[str, Any]]) -> tuple[tuple[str, tuple[int, ...], int], ...]:
    """Name, shape and bits of an element of each tensor."""
    return tuple((name, tuple(one.shape), 8 * one.element_size()) for name, one in tensors)


class ModuleWatcher:
    """Hooks that mark where modules and layers begin and end, and where gradients arrive."""

    def __init__(self, recorder: Recorder, model: Any, stack: list[Any]) -> None:
        self.recorder, self.model, self.stack = recorder, model, stack
        self.names = {id(module): name for name, module in model.named_modules()}
        self.before = 0  # the number of tensors before the first forward
        self.where = BACK
        self.layer = -1  # the layer that began last
        self.inside: list[str] = []
        self.flows: dict[int, int] = {}  # layer -> its input; the last is the output of the stack
        self.grads: dict[int, int] = {}  # the gradient of each flow
        self.arrived: dict[str, int] = {}  # weight -> its gradient
        self.called: set[str] = set()  # modules whose forward has run
        self.readers: dict[str, str] = {}  # trained parameter -> the module that reads it
        self.shape: tuple[int, int] = (1, 1)  # of a flow: rows, width

    def mark(self, word: str, name: object = "") -> None:
        """Add a mark to the recording."""
        self.recorder.mark(f"{self.where}|{word}|{name}")

    def run(self, batch: Any, where: str, precision: str) -> None:
        """Run forward, and backward where there is a graph."""
        self.before = self.before or len(self.recorder.sizes)
        self.where, self.layer = where, -1
        named = self.model.named_parameters()
        self.readers = {name: self._reader(name) for name, p in named if p.requires_grad}
        self.mark("begin")
        with _autocast(precision):
            output = self.model(**batch) if isinstance(batch, dict) else self.model(*batch)
        loss = loss_of(output)
        del output
        self.mark("end")
        self.where, last = BACK, len(self.stack) + 1
        self.flows[last] = self._number(loss)
        if loss.requires_grad:
            loss.register_hook(lambda grad: self.grads.update({last: self._number(grad)}))
            self.mark("begin")
            loss.backward()
            self.mark("end")

    def _reader(self, name: str) -> str:
        """The module that reads a parameter: its owner, or the nearest one around it whose forward
        has run (nn.MultiheadAttention reads the weights of its out_proj, which is never called).
        """
        module = name.rpartition(".")[0]
        while module and module not in self.called:
            module = module.rpartition(".")[0]
        return module

    def _number(self, tensor: Any) -> int:
        number = self.recorder.number_of(tensor)
        return -1 if number is None else number

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Install the hooks on every module and parameter."""
        module_hooks = torch.nn.modules.module
        handles = [
            module_hooks.register_module_forward_pre_hook(self._enter),
            module_hooks.register_module_forward_hook(self._leave),
        ]
        for number, layer in enumerate(self.stack):
            hook = partial(self._flows_in, number)
            handles.append(layer.register_forward_pre_hook(hook, with_kwargs=True))
        for name, p in self.model.named_parameters():
            if p.requires_grad:
                handles.append(p.register_post_accumulate_grad_hook(partial(self._arrives, name)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: Any, args: Any) -> None:
        name = self.names.get(id(module))
        if self.where != BACK and name is not None:
            self.inside.append(self.recorder.module)
            self.recorder.module = name
            self.called.add(name)
            self.mark("in", name)

    def _leave(self, module: Any, args: Any, output: Any) -> None:
        name = self.names.get(id(module))
        if self.where == BACK or name is None:
            return
        self.recorder.module = self.inside.pop()
        if module is self.stack[-1]:
            self._boundary(len(self.stack), _first(output))
        self.mark("out", name)
        if torch.is_grad_enabled() and name in self.readers.values():
            first = next((one for one in _tensors(output) if one.requires_grad), None)
            if first is not None:
                first.register_hook(lambda _: self.mark("in", name))

    def _flows_in(self, number: int, module: Any, args: Any, kwargs: Any) -> None:
        if self.where == BACK:
            return
        if number != self.layer + 1:
            order = "its list of layers must be run once, in order"
            runs = f"the module runs layer {number} after layer {self.layer}"
            raise InputError(f"{runs}; {order}")
        self.layer = number
        self._boundary(number, _first((args, kwargs)))

    def _boundary(self, number: int, tensor: Any) -> None:
        """Note the tensor that flows between two layers, and hook its gradient."""
        self.flows[number] = self._number(tensor)
        self.shape = (tensor.numel() // tensor.shape[-1], tensor.shape[-1])
        if tensor.requires_grad and torch.is_grad_enabled():
            tensor.register_hook(partial(self._flows_back, number))

    def _flows_back(self, number: int, grad: Any) -> None:
        self.grads[number] = self._number(grad)
        self.mark("layer", number)

    def _arrives(self, name: str, parameter: Any) -> None:
        self.arrived[name] = self._number(parameter.grad)
        self.mark("weight", name)

    def batch_bytes(self, batch: Any) -> int:
        """Bytes of a batch, without a tensor that is itself the first layer's input."""
        others = (one for one in _tensors(batch) if self._number(one) != self.flows[0])
        return sum(block_bytes(one.nbytes) for one in others)

    def biases(self) -> int:
        """The number of threads in which a matmul adds a bias: each has a cuBLASLt workspace."""
        return sum(maker.op == CUBLAS_LT for maker in self.recorder.makers)

    def recorded_run(self) -> RecordedRun:
        """The recording, with sums of gradients in place."""
        recorder = self.recorder
        owner = memory_owners(recorder.events, recorder.sums)
        stream = recorder.recorded()
        parts = range(len(self.stack) + 2)
        named = dict(self.model.named_parameters())
        trained = {name: tuple(named[name].shape) for name in self.readers}
        owned: dict[str, dict[str, tuple[int, ...]]] = {}
        for name in trained:
            if name in self.arrived:
                owned.setdefault(self.readers[name], {})[name] = trained[name]
        ops = [(number, maker.op) for number, maker in enumerate(recorder.makers)]
        return RecordedRun(
            items=with_marks(stream.events, stream.marks),
            sizes=recorder.sizes,
            labels=[_label(maker) for maker in recorder.makers],
            owned=owned,
            readers=self.readers,
            unused={name: shape for name, shape in trained.items() if name not in self.arrived},
            work=frozenset(n for n, op in ops if op.endswith("workspace")),
            outside=frozenset(range(self.before)),
            handles=frozenset(n for n, op in ops if op in (CUBLAS, CUBLAS_LT)),
            flows=[owner.get(self.flows[n], self.flows[n]) for n in parts],
            grads=[owner.get(g := self.grads.get(n, -1), g) for n in parts],
            arrived={name: owner.get(g, g) for name, g in self.arrived.items()},
            stack=[self.names[id(layer)] for layer in self.stack],
            kind=type(self.stack[0]).__name__,
        )


def _label(maker: StorageMaker) -> str:
    op = maker.op.removeprefix("aten::").removeprefix("_")
    return f"{maker.module}: {op}" if maker.module else op


def _first(tensors: Any) -> Any:
    for one in tree_iter(tensors):
        if _floats(one):
            return one
    fix = "its first one must be what flows from layer to layer"
    raise InputError(f"a layer is given no floating-point tensor; {fix}")
