"""DeepSpeed's own engine on fake tensors: what cannot work there is patched from outside.

It runs as on a GPU: its accelerator is the CUDA one, with CUDA streams that are distinct and do
nothing, and with kernels that return at once. All Python code, and so every tensor that it
allocates, is DeepSpeed's.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from typing import Any
from unittest.mock import patch

import torch

from ...runfile.resolve.resolved_run import ResolvedRun
from ..jobs.model import import_extra
from .card import FOREACH_TYPES, card_of, patched, simulated_cuda
from .device_names import DeviceNames
from .recorder import Recorder

PATCHED = {
    "torch.optim.optimizer": "_foreach_supported_types",  # so that torch_adam chooses foreach
    "deepspeed.accelerator.real_accelerator": "ds_accelerator",
    "deepspeed.comm.torch": "build_shm_op",  # a kernel for ranks that share a host
    "deepspeed.ops.adam.fused_adam": "FusedAdamBuilder",
    "deepspeed.ops.adam.cpu_adam": "CPUAdamBuilder",
    "deepspeed.ops.lion.fused_lion": "FusedLionBuilder",
    "deepspeed.ops.lion.cpu_lion": "CPULionBuilder",
}
# It calls torch.compile as it is imported, which reads torch.cuda's own functions.
COMPILES = "deepspeed.runtime.zero.muon.muon_optimizer"


class NullKernels:
    """Stands for compiled kernels, which write into existing tensors and allocate none."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def load(self, *_: Any, **__: Any) -> Any:
        """An object whose every attribute is a function that does nothing."""
        return self

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def _accelerator(recorder: Recorder, total: int) -> Any:
    """DeepSpeed's CUDA accelerator, which asks torch.cuda; it does not ask the driver."""
    cuda: Any = import_extra("deepspeed.accelerator.cuda_accelerator", "measure")

    class Accelerator(cuda.CUDA_Accelerator):
        def available_memory(self, *_: Any) -> int:
            # stage_1_and_2.py:451: whether the weights are flattened on the card or on the host
            return total - recorder.alive_bytes()

    return Accelerator()


def as_on_gpu(recorder: Recorder, resolved: ResolvedRun) -> AbstractContextManager[None]:
    """A context in which DeepSpeed runs as on the run's GPU; every patch is undone at its end.

    DeepSpeed is imported here, not inside the context, where every tensor is fake.
    """
    with _silent():
        for name in ("deepspeed", COMPILES, *PATCHED):
            import_extra(name, "measure")
    return _patched_for_gpu(recorder, resolved)


@contextmanager
def _patched_for_gpu(recorder: Recorder, resolved: ResolvedRun) -> Iterator[None]:
    accelerator = _accelerator(recorder, resolved.hardware.memory_bytes)
    functions = torch.nn.functional
    with (
        patch.dict(os.environ),
        _silent(),
        _modules_restored(),
        simulated_cuda(card_of(resolved.run), recorder) as answers,
        torch.cpu.stream(answers["default_stream"]()),
        patch.object(functions, "linear", functions.linear),  # zero.Init replaces it for good
        _patched(accelerator),
        DeviceNames(recorder.sides).everywhere(),
    ):
        yield


@contextmanager
def _silent() -> Iterator[None]:
    """Without DeepSpeed's log and its warnings about deprecated collectives of torch."""
    logger = logging.getLogger("DeepSpeed")
    before, logger.disabled = logger.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.disabled = before


@contextmanager
def _modules_restored() -> Iterator[None]:
    """Restore DeepSpeed's module variables at the end: they hold process groups and counters."""
    loaded = {name: module for name, module in sys.modules.items() if name.startswith("deepspeed")}
    before = {name: dict(vars(module)) for name, module in loaded.items()}
    inside = [
        (value, copy(value))
        for names in before.values()
        for key, value in names.items()
        if isinstance(value, dict | list | set) and not key.startswith("__")
    ]
    try:
        yield
    finally:
        for name, values in before.items():
            vars(loaded[name]).update(values)
        for value, content in inside:
            if isinstance(value, list):
                value[:] = content
            else:
                value.clear()
                value.update(content)


def _patched(accelerator: Any) -> AbstractContextManager[None]:
    """Patch what needs a card, a compiler or another rank."""
    replacements = {
        "ds_accelerator": accelerator,
        "build_shm_op": lambda: None,
        "_foreach_supported_types": FOREACH_TYPES,
    }
    return patched(
        {
            sys.modules[name]: {attribute: replacements.get(attribute, NullKernels)}
            for name, attribute in PATCHED.items()
        }
    )
