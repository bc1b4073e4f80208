"""The kind of memory of each block of a recording: PARAM, GRAD, OPTIM, ACT, ..."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ...ledger.ledger import ACT, CACHE, COMM, GRAD, OPTIM, PARAM, RUNTIME, TEMP
from .recorder import Recorder
from .storages import StorageMaker

CACHES = "transformers/cache_utils.py"
ZERO = "deepspeed/runtime/zero/"  # buckets and gathered weights
OUTSIDE = ("opt", "model", "init", "load")  # phases without activations


class KindWatcher:
    """Finds the blocks of the model's and the optimizer's tensors at the end of each phase."""

    def __init__(self, recorder: Recorder, progress: Callable[[str], None] | None = None) -> None:
        self.recorder, self.progress = recorder, progress
        self.kinds: dict[int, str] = {}
        self._model: Any = None
        self._optimizer: Any = None
        self._names: dict[int, str] = {}

    def __call__(self, model: Any, optimizer: Any) -> None:
        """Set the model and the optimizer to look at."""
        self._model, self._optimizer = model, optimizer
        self._names = {id(module): name for name, module in model.named_modules()}

    def mark(self, name: str) -> None:
        """End a phase, and set the kind of every block that is a state of the run."""
        self.recorder.mark(name)
        if self.progress is not None:
            self.progress(name)
        if self._model is None:
            return
        self._set_module(self._model)
        named = () if self._optimizer is None else self._model.named_parameters()
        for path, parameter in named:
            for value in self._optimizer.state.get(parameter, {}).values():
                if isinstance(value, torch.Tensor):
                    self._set_kind(value, OPTIM, path)
        for tensor, kind in _deepspeed_tensors(self._model, self._optimizer):
            self._set_kind(tensor, kind, "")

    def _set_module(self, module: Any) -> None:
        """Set the kind of a module's parameters, their gradients, and its buffers."""
        for path, parameter in module.named_parameters():
            self._set_kind(parameter, PARAM, path)
            if parameter.grad is not None:
                self._set_kind(parameter.grad, GRAD, path)
        for path, buffer in module.named_buffers():
            self._set_kind(buffer, PARAM, path)

    def _set_kind(self, tensor: Any, kind: str, path: str) -> None:
        """Set the kind of a tensor's block, and its module where the recorder has none."""
        number = self.recorder.number_of(tensor)
        if number is None or number in self.kinds:
            return
        self.kinds[number] = kind
        maker = self.recorder.makers[number]
        if not maker.module:
            self.recorder.makers[number] = maker._replace(module=path.rpartition(".")[0])

    @contextmanager
    def modules(self) -> Iterator[None]:
        """Keep the recorder's `module` at the module whose forward runs."""
        hooks = torch.nn.modules.module
        above: list[str] = []

        def enter(module: Any, args: Any) -> None:
            if not above:
                self._on_outermost(module)
            above.append(self.recorder.module)
            self.recorder.module = self._names.get(id(module), self.recorder.module)

        def leave(module: Any, args: Any, output: Any) -> None:
            if above:
                self.recorder.module = above.pop()

        handles = (
            hooks.register_module_forward_pre_hook(enter),
            hooks.register_module_forward_hook(leave, always_call=True),
        )
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _on_outermost(self, module: Any) -> None:
        """Called with a module that no other module called."""


def _deepspeed_tensors(model: Any, engine: Any) -> Iterator[tuple[Any, str]]:
    """The tensors of DeepSpeed's optimizer and their kinds: shards, buckets, master weights, their
    gradients and states.
    """
    optimizer = getattr(engine, "optimizer", None)
    if optimizer is None:
        return
    tensors: list[tuple[Any, str]] = [
        (getattr(p, "ds_tensor", None), PARAM) for p in model.parameters()
    ]
    averaged = getattr(engine, "averaged_gradients", {})
    gradients = averaged.values() if isinstance(averaged, dict) else averaged
    tensors += [(tensor, GRAD) for group in gradients for tensor in group or ()]
    tensors.append((getattr(engine, "grad_partitions_flat_buffer", None), GRAD))
    buckets = getattr(engine, "ipg_buckets", {}).values()
    tensors += [(getattr(tensor, "buffer", None), COMM) for tensor in buckets]
    masters = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    masters += getattr(
        engine, "fp32_partitioned_groups_flat", []
    )  # outside a step they are in no group
    for master in masters:
        states = optimizer.state.get(master, {}).values()
        tensors += [(master, OPTIM), (master.grad, GRAD), *((tensor, OPTIM) for tensor in states)]
    yield from ((tensor, kind) for tensor, kind in tensors if isinstance(tensor, torch.Tensor))


def block_kinds(watch: KindWatcher, phase_of: Callable[[int], str]) -> list[str]:
    """The kind of every block; `phase_of` gives the phase that allocated a block."""
    # a sum has the memory of its first term
    for sum_number, term in reversed(watch.recorder.sums.items()):
        if sum_number in watch.kinds:
            watch.kinds.setdefault(term, watch.kinds[sum_number])
    return [
        watch.kinds.get(number) or _kind(maker, phase_of(number))
        for number, maker in enumerate(watch.recorder.makers)
    ]


def _kind(maker: StorageMaker, phase: str) -> str:
    """The kind of a block that is no state of the run."""
    outside = phase.endswith(OUTSIDE)
    if maker.op.startswith("cuBLAS"):
        return RUNTIME
    if maker.comm or (ZERO in maker.line and not outside):
        return COMM
    if CACHES in maker.line:
        return CACHE
    return TEMP if outside else ACT
