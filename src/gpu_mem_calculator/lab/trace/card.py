"""torch.cuda as on a machine with the card: its answers come from the catalogue and the recorder.

Nothing is queued and nothing is launched: CUDA streams are distinct and do nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from msgspec import Struct
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import optimizer
from torch.utils import _foreach_utils

from ...run.run import Run
from ...tools.translation.arguments import tables
from .device_names import GPU
from .recorder import Recorder

NAMES = tables(__file__)  # functions of torch.cuda by what they do here, and numbers of a card
CUDA_VERSION = "13.0"
NCCL_VERSION = (2, 27, 7)
FOREACH_TYPES = [torch.Tensor, torch.nn.Parameter, FakeTensor]


class Card(Struct, frozen=True, kw_only=True):
    """The GPU that a program sees, and how many are on its machine."""

    name: str
    memory_bytes: int
    compute_capability: str
    multiprocessors: int
    count: int = 1

    @property
    def capability(self) -> tuple[int, int]:
        """Major and minor compute capability."""
        major, _, minor = self.compute_capability.partition(".")
        return int(major), int(minor)

    @property
    def properties(self) -> SimpleNamespace:
        """What torch.cuda.get_device_properties returns."""
        major, minor = self.capability
        return SimpleNamespace(
            name=self.name,
            total_memory=self.memory_bytes,
            major=major,
            minor=minor,
            multi_processor_count=self.multiprocessors,
            **NAMES["properties"],
        )


def card_of(run: Run) -> Card:
    """The card of a run."""
    return Card(
        name=run.card,
        memory_bytes=run.card_bytes,
        compute_capability=run.compute_capability,
        multiprocessors=run.multiprocessors,
    )


def cuda_answers(card: Card, recorder: Recorder) -> dict[str, Any]:
    """The functions of torch.cuda, by name."""
    default, modern = CardStream(), card.capability >= (8, 0)

    def used(*_: Any) -> int:
        return recorder.alive_bytes()

    def statistics(*_: Any) -> dict[str, int]:
        return defaultdict(int, {"allocated_bytes.all.current": used(), "num_ooms": 0})

    answers = {
        "is_available": True,
        "is_initialized": True,
        "device_count": card.count,
        "current_device": 0,
        "get_device_name": card.name,
        "get_device_capability": card.capability,
        "get_device_properties": card.properties,
        "get_arch_list": ["sm_{}{}".format(*card.capability)],
        "is_bf16_supported": modern,
        "is_tf32_supported": modern,
        "is_current_stream_capturing": False,
        "can_device_access_peer": True,
        "initial_seed": 0,
        "memory_summary": "",
        "memory_snapshot": [],
        "utilization": 0,
        "default_stream": default,
    }
    return {
        **dict.fromkeys(NAMES["silent"], answer(None)),
        **dict.fromkeys(NAMES["used"], used),
        **{name: answer(value) for name, value in answers.items()},
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "get_rng_state_all": lambda *_: [torch.get_rng_state()],
        "mem_get_info": lambda *_: (card.memory_bytes - used(), card.memory_bytes),
        "memory_stats": statistics,
        "empty_cache": recorder.empty_cache,
        "Stream": CardStream,
        "ExternalStream": CardStream,
        "Event": CardEvent,
        "stream": lambda stream: nullcontext() if stream is None else torch.cpu.stream(stream),
        "current_stream": lambda *_: torch.cpu.current_stream(),
        "device": lambda *_: nullcontext(),
        "device_of": lambda *_: nullcontext(),
    }


class CardStream(torch.cpu.Stream):
    """A CUDA stream that does nothing."""

    stream_id, cuda_stream, device_index, device_type = 0, 0, 0, 1
    device = GPU
    priority = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def is_capturing(self) -> bool:
        """No CUDA graph is recorded."""
        return False

    def query(self) -> bool:
        """All its work is done."""
        return True

    def wait_event(self, *_: Any) -> None:
        """Nothing is queued."""

    wait_stream = synchronize = wait_event

    def record_event(self, event: Any = None) -> Any:
        """An event that is complete at once."""
        return event or CardEvent()

    def __enter__(self) -> Any:
        self._context = torch.cpu.stream(self)
        self._context.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)


class CardEvent:
    """A CUDA event that is complete at once."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, *_: Any) -> None:
        """Nothing is queued."""

    wait = synchronize = record

    def query(self) -> bool:
        """Complete."""
        return True

    def elapsed_time(self, *_: Any) -> float:
        """A millisecond: no time passes on a card that does not exist."""
        return 1.0


def answer(value: Any) -> Any:
    """A function that returns a value, whatever it is asked."""
    return lambda *_, **__: value


def _accelerator(card: Card, answers: dict[str, Any]) -> dict[str, Any]:
    """The functions of torch.accelerator."""
    return {
        **dict.fromkeys(NAMES["accelerator_silent"], answer(None)),
        "is_available": answer(True),
        "current_accelerator": answer(torch.device("cuda")),
        "device_count": answer(card.count),
        "current_device_index": answer(0),
        "current_device_idx": answer(0),
        **{name: answers[name] for name in NAMES["accelerator_same"]},
    }


def _autocast() -> dict[str, Any]:
    """torch's switches of autocast: those of CUDA are the CPU's, where the fake tensors are."""

    def on_cpu(function: Any, default: tuple[str, ...] = ()) -> Any:
        def call(*args: Any) -> Any:
            given = args or default
            first = "cpu" if given and str(given[0]) == "cuda" else given[0] if given else "cpu"
            return function(first, *given[1:])

        return call

    names = ("get_autocast_dtype", "set_autocast_dtype", "set_autocast_enabled")
    patched = {name: on_cpu(getattr(torch, name)) for name in names}
    patched["is_autocast_enabled"] = on_cpu(torch.is_autocast_enabled, ("cuda",))
    patched["is_autocast_available"] = answer(True)
    patched["get_autocast_gpu_dtype"] = lambda: torch.get_autocast_dtype("cpu")
    return patched


def _modules(card: Card, answers: dict[str, Any]) -> dict[Any, dict[str, Any]]:
    """What is patched besides torch.cuda: module -> name -> its replacement."""
    devices = [*_foreach_utils._get_foreach_kernels_supported_devices(), "cpu"]
    foreach = {
        "_foreach_supported_types": FOREACH_TYPES,
        "_get_foreach_kernels_supported_devices": answer(devices),
    }
    return {
        torch.cuda.memory: {k: v for k, v in answers.items() if hasattr(torch.cuda.memory, k)},
        torch.cuda.random: {k: v for k, v in answers.items() if hasattr(torch.cuda.random, k)},
        torch.cuda.nccl: {"version": answer(NCCL_VERSION), "is_available": answer(True)},
        torch.accelerator: _accelerator(card, answers),
        torch.version: {"cuda": CUDA_VERSION},
        torch.backends.cuda: {"is_built": answer(True)},
        torch.backends.cudnn: {"is_available": answer(True), "version": answer(91002)},
        torch: _autocast(),
        torch.amp.autocast_mode: {"is_autocast_available": answer(True)},
        torch._C: {"_get_accelerator": answer(GPU), "_cuda_getCurrentRawStream": answer(0)},
        optimizer: foreach,
        _foreach_utils: foreach,
    }


@contextmanager
def patched(modules: dict[Any, dict[str, Any]]) -> Iterator[None]:
    """Replace names of modules; undone at the end."""
    with ExitStack() as stack:
        for module, names in modules.items():
            for name, value in names.items():
                stack.enter_context(patch.object(module, name, value, create=True))
        yield


@contextmanager
def simulated_cuda(card: Card, recorder: Recorder) -> Iterator[dict[str, Any]]:
    """torch.cuda alone answers as with the card; undone at the end."""
    answers, nvtx = cuda_answers(card, recorder), dict.fromkeys(NAMES["nvtx"], answer(None))
    with patched({torch.cuda: answers, torch.cuda.nvtx: nvtx}):
        yield answers


@contextmanager
def simulated_card(card: Card, recorder: Recorder) -> Iterator[None]:
    """All of torch answers as with the card; undone at the end."""
    with ExitStack() as stack:
        answers = stack.enter_context(simulated_cuda(card, recorder))
        stack.enter_context(patched(_modules(card, answers)))
        dtype = torch.get_autocast_dtype("cpu")
        torch.set_autocast_dtype("cpu", torch.float16)  # CUDA's default
        stack.enter_context(torch.cpu.stream(torch.cuda.default_stream()))
        stack.callback(torch.set_autocast_dtype, "cpu", dtype)
        yield
