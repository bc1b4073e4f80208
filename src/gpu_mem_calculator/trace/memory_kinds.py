"""What each block of a recording is for, in the ledger's words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..ledger.ledger import ACT, CACHE, COMM, GRAD, OPTIM, PARAM, RUNTIME, TEMP
from .recorder import Recorder

CACHES = "transformers/cache_utils.py"
ZERO = "deepspeed/runtime/zero/"  # buckets and gathered weights
OUTSIDE = ("opt", "model", "init", "load")  # phases without activations


class KindWatcher:
    """Knows the model and the optimizer once they exist, and names their blocks at every mark."""

    def __init__(self, recorder: Recorder, progress: Callable[[str], None] | None = None) -> None:
        self.recorder, self.progress = recorder, progress
        self.kinds: dict[int, str] = {}
        self._model: Any = None
        self._optimizer: Any = None
        self._names: dict[int, str] = {}

    def __call__(self, model: Any, optimizer: Any) -> None:
        """From now on these are watched."""
        self._model, self._optimizer = model, optimizer
        self._names = {id(module): name for name, module in model.named_modules()}

    def mark(self, name: str) -> None:
        """The end of a phase: what is alive now and belongs to the states of the run?"""
        self.recorder.mark(name)
        if self.progress is not None:
            self.progress(name)
        if self._model is None:
            return
        for path, parameter in self._model.named_parameters():
            self._is(parameter, PARAM, path)
            if parameter.grad is not None:
                self._is(parameter.grad, GRAD, path)
            states = {} if self._optimizer is None else self._optimizer.state.get(parameter, {})
            for value in states.values():
                if isinstance(value, torch.Tensor):
                    self._is(value, OPTIM, path)
        for path, buffer in self._model.named_buffers():
            self._is(buffer, PARAM, path)
        for tensor, kind in _deepspeed_tensors(self._model, self._optimizer):
            self._is(tensor, kind, "")

    def _is(self, tensor: Any, kind: str, path: str) -> None:
        """A block is a state of the run; where nothing else says so, of the module that has it."""
        number = self.recorder.number_of(tensor)
        if number is None or number in self.kinds:
            return
        self.kinds[number] = kind
        maker = self.recorder.makers[number]
        if not maker.module:
            self.recorder.makers[number] = maker._replace(module=path.rpartition(".")[0])

    @contextmanager
    def modules(self) -> Iterator[None]:
        """The recorder knows in which module it is."""
        hooks, above = torch.nn.modules.module, []

        def enter(module: Any, args: Any) -> None:
            above.append(self.recorder.module)
            self.recorder.module = self._names.get(id(module), self.recorder.module)

        def leave(module: Any, args: Any, output: Any) -> None:
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


def _deepspeed_tensors(model: Any, engine: Any) -> Iterator[tuple[Any, str]]:
    """What DeepSpeed's optimizer keeps beside a model's parameters: shards, buckets, masters,
    their gradients and states.
    """
    inner = getattr(engine, "optimizer", None)
    if inner is None:
        return
    found: list[tuple[Any, str]] = [(getattr(p, "ds_tensor", None), PARAM)
                                    for p in model.parameters()]  # fmt: skip
    averaged = getattr(engine, "averaged_gradients", {})
    gradients = averaged.values() if isinstance(averaged, dict) else averaged
    found += [(one, GRAD) for some in gradients for one in some or ()]
    found.append((getattr(engine, "grad_partitions_flat_buffer", None), GRAD))
    buckets = getattr(engine, "ipg_buckets", {}).values()
    found += [(getattr(one, "buffer", None), COMM) for one in buckets]
    masters = [one for group in inner.param_groups for one in group["params"]]
    masters += getattr(engine, "fp32_partitioned_groups_flat", [])  # in no group outside its step
    for master in masters:
        states = inner.state.get(master, {}).values()
        found += [(master, OPTIM), (master.grad, GRAD), *((one, OPTIM) for one in states)]
    yield from ((one, kind) for one, kind in found if isinstance(one, torch.Tensor))


def kinds(watch: KindWatcher, phase_of: Callable[[int], str]) -> list[str]:
    """The kind of every block; `phase_of` is the phase in which one was made."""
    for total, term in reversed(watch.recorder.sums.items()):  # which has its memory
        if total in watch.kinds:
            watch.kinds.setdefault(term, watch.kinds[total])
    found = []
    for number, maker in enumerate(watch.recorder.makers):
        known = watch.kinds.get(number)
        if known is None:
            if maker.op.startswith("cuBLAS"):
                known = RUNTIME
            elif maker.comm or (ZERO in maker.line and not phase_of(number).endswith(OUTSIDE)):
                known = COMM
            elif CACHES in maker.line:
                known = CACHE
            else:
                known = TEMP if phase_of(number).endswith(OUTSIDE) else ACT
        found.append(known)
    return found
