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
from contextlib import AbstractContextManager, ExitStack, contextmanager
from copy import copy
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ...runfile.resolve.resolved_run import ResolvedRun
from ..jobs.model import import_extra
from .device_names import GPU, DeviceNames
from .recorder import Recorder

PATCHED = {
    "torch.cuda": "get_device_capability",  # transformers reads it where tensors are on a GPU
    "torch.optim.optimizer": "_foreach_supported_types",  # so that torch_adam chooses foreach
    "deepspeed.accelerator.real_accelerator": "ds_accelerator",
    "deepspeed.comm.torch": "build_shm_op",  # a kernel for ranks that share a host
    "deepspeed.ops.adam.fused_adam": "FusedAdamBuilder",
    "deepspeed.ops.adam.cpu_adam": "CPUAdamBuilder",
    "deepspeed.ops.lion.fused_lion": "FusedLionBuilder",
    "deepspeed.ops.lion.cpu_lion": "CPULionBuilder",
}
LEVELS = ("allocated", "reserved", "cached")
STATISTICS = (
    *(f"memory_{level}" for level in LEVELS),
    *(f"max_memory_{level}" for level in LEVELS),
    "reset_peak_memory_stats",
)


class RecordedStream(torch.cpu.Stream):
    """A CPU stream with the methods that DeepSpeed calls on a CUDA stream."""

    def synchronize(self) -> None:
        """Does nothing: no work is queued."""

    def record_event(self, event: Any = None) -> Any:
        """An event that is complete at once."""
        return event or torch.cpu.Event()


class NullKernels:
    """Stands for compiled kernels, which write into existing tensors and allocate none."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def load(self, *_: Any, **__: Any) -> Any:
        """An object whose every attribute is a function that does nothing."""
        return self

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def _card(recorder: Recorder, default: RecordedStream, total: int) -> Any:
    """DeepSpeed's CUDA accelerator with the answers of a card of `total` bytes."""
    cuda: Any = import_extra("deepspeed.accelerator.cuda_accelerator", "measure")
    card: Any = type("Card", (cuda.CUDA_Accelerator,), {"_init_pynvml": lambda _: None})
    answers: dict[str, Any] = {
        "stream": torch.cpu.stream,
        "current_stream": torch.cpu.current_stream,
        "default_stream": default,
        "synchronize": None,
        "empty_cache": recorder.empty_cache,
        # stage_1_and_2.py:451: whether the weights are flattened on the card or on the host
        "available_memory": lambda *_: total - recorder.alive_bytes(),
        "is_available": True,
        "set_device": None,
        "current_device": 0,
        "device_count": 1,
        "current_device_name": str(GPU),
        "is_current_stream_capturing": False,
        "range_push": None,
        "range_pop": None,
        "lazy_call": None,
        "get_rng_state": torch.get_rng_state,
        "set_rng_state": None,
        "manual_seed": None,
        **dict.fromkeys(STATISTICS, 0),
    }
    for name, answer in answers.items():
        setattr(card, name, _method(answer))
    card.Stream = property(lambda _: lambda *_, **__: RecordedStream())
    card.Event = property(lambda _: torch.cpu.Event)
    return card()


def _method(answer: Any) -> Any:
    call = answer if callable(answer) else lambda *_, **__: answer
    return lambda _, *args, **kwargs: call(*args, **kwargs)


def as_on_gpu(recorder: Recorder, resolved: ResolvedRun) -> AbstractContextManager[None]:
    """A context in which DeepSpeed runs as on the run's GPU; every patch is undone at its end.

    DeepSpeed is imported here, not inside the context, where every tensor is fake.
    """
    with _silent():
        for name in ("deepspeed", *PATCHED):
            import_extra(name, "measure")
    return _patched_for_gpu(recorder, resolved)


@contextmanager
def _patched_for_gpu(recorder: Recorder, resolved: ResolvedRun) -> Iterator[None]:
    default = RecordedStream()
    card = _card(recorder, default, resolved.hardware.memory_bytes)
    capability = tuple(map(int, resolved.run.compute_capability.split(".")))
    functions = torch.nn.functional
    with (
        patch.dict(os.environ),
        _silent(),
        _modules_restored(),
        torch.cpu.stream(default),
        patch.object(functions, "linear", functions.linear),  # zero.Init replaces it for good
        _patched(card, capability),
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


@contextmanager
def _patched(card: Any, capability: tuple[int, ...]) -> Iterator[None]:
    """Patch what needs a card, a compiler or another rank."""
    replacements = {
        "ds_accelerator": card,
        "build_shm_op": lambda: None,
        "get_device_capability": lambda *_: capability,
        "_foreach_supported_types": [torch.Tensor, torch.nn.Parameter, FakeTensor],
    }
    with ExitStack() as stack:
        for name, attribute in PATCHED.items():
            value = replacements.get(attribute, NullKernels)
            stack.enter_context(patch.object(sys.modules[name], attribute, value))
        yield
