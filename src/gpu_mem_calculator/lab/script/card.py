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

from ..trace.deepspeed import RecordedStream
from ..trace.device_names import GPU
from ..trace.recorder import Recorder

CUDA_VERSION = "13.0"
NCCL_VERSION = (2, 27, 7)
SILENT = (
    *("init", "_lazy_init", "synchronize", "set_device", "manual_seed", "manual_seed_all", "seed"),
    *("seed_all", "ipc_collect", "set_rng_state", "set_rng_state_all", "set_stream"),
    *("set_per_process_memory_fraction", "reset_peak_memory_stats", "reset_max_memory_allocated"),
    *("reset_max_memory_cached", "reset_accumulated_memory_stats", "set_sync_debug_mode"),
)


class Card(Struct, frozen=True, kw_only=True):
    """The GPU that a script sees, and how many are on its machine."""

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


def _properties(card: Card) -> Any:
    major, minor = card.capability
    return SimpleNamespace(
        name=card.name,
        total_memory=card.memory_bytes,
        major=major,
        minor=minor,
        multi_processor_count=card.multiprocessors,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        max_threads_per_block=1024,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=232448,
        shared_memory_per_multiprocessor=233472,
        regs_per_multiprocessor=65536,
        L2_cache_size=50 << 20,
        is_integrated=0,
        is_multi_gpu_board=0,
        uuid="GPU-00000000-0000-0000-0000-000000000000",
        pci_bus_id=0,
    )


def cuda_answers(card: Card, recorder: Recorder) -> dict[str, Any]:
    """The functions of torch.cuda, by name."""
    default = CardStream()
    properties, capability = _properties(card), card.capability

    def used(*_: Any) -> int:
        return recorder.alive_bytes()

    def statistics(*_: Any) -> dict[str, int]:
        return defaultdict(int, {"allocated_bytes.all.current": used(), "num_ooms": 0})

    def free(*_: Any) -> tuple[int, int]:
        return card.memory_bytes - used(), card.memory_bytes

    levels = ("memory_allocated", "memory_reserved", "memory_cached")
    return {
        **dict.fromkeys(SILENT, _nothing),
        **{name: used for level in levels for name in (level, f"max_{level}")},
        "is_available": _answer(True),
        "is_initialized": _answer(True),
        "device_count": _answer(card.count),
        "current_device": _answer(0),
        "get_device_name": _answer(card.name),
        "get_device_capability": _answer(capability),
        "get_device_properties": _answer(properties),
        "get_arch_list": _answer([f"sm_{capability[0]}{capability[1]}"]),
        "is_bf16_supported": _answer(capability >= (8, 0)),
        "is_tf32_supported": _answer(capability >= (8, 0)),
        "is_current_stream_capturing": _answer(False),
        "can_device_access_peer": _answer(True),
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "get_rng_state_all": lambda *_: [torch.get_rng_state()],
        "initial_seed": _answer(0),
        "mem_get_info": free,
        "memory_stats": statistics,
        "memory_summary": _answer(""),
        "memory_snapshot": _answer([]),
        "empty_cache": recorder.empty_cache,
        "utilization": _answer(0),
        "Stream": CardStream,
        "ExternalStream": CardStream,
        "Event": CardEvent,
        "stream": lambda stream: nullcontext() if stream is None else torch.cpu.stream(stream),
        "current_stream": lambda *_: torch.cpu.current_stream(),
        "default_stream": lambda *_: default,
        "device": lambda *_: nullcontext(),
        "device_of": lambda *_: nullcontext(),
        "_default": default,
    }


class CardStream(RecordedStream):
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

    wait_stream = wait_event

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


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _answer(value: Any) -> Any:
    return lambda *_, **__: value


def _accelerator(card: Card, answers: dict[str, Any]) -> dict[str, Any]:
    """The functions of torch.accelerator."""
    return {
        "is_available": _answer(True),
        "current_accelerator": _answer(torch.device("cuda")),
        "device_count": _answer(card.count),
        "current_device_index": _answer(0),
        "current_device_idx": _answer(0),
        "set_device_index": _nothing,
        "set_device_idx": _nothing,
        "synchronize": _nothing,
        "current_stream": answers["current_stream"],
        "set_stream": _nothing,
        "get_device_capability": answers["get_device_capability"],
        **{
            name: answers[name]
            for name in (
                *("empty_cache", "memory_stats", "memory_allocated", "max_memory_allocated"),
                *("memory_reserved", "max_memory_reserved", "reset_peak_memory_stats"),
                "reset_accumulated_memory_stats",
            )
        },
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
    patched["is_autocast_available"] = _answer(True)
    patched["get_autocast_gpu_dtype"] = lambda: torch.get_autocast_dtype("cpu")
    return patched


def _modules(card: Card, recorder: Recorder) -> dict[Any, dict[str, Any]]:
    """What is patched: module -> name -> its replacement."""
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    answers = cuda_answers(card, recorder)
    devices = [*_foreach_utils._get_foreach_kernels_supported_devices(), "cpu"]
    types = [torch.Tensor, torch.nn.Parameter, _fake_tensor()]
    nvtx = dict.fromkeys(("range_push", "range_pop", "mark", "range_start"), _nothing)
    return {
        torch.cuda: {k: v for k, v in answers.items() if k != "_default"},
        torch.cuda.memory: {k: v for k, v in answers.items() if hasattr(torch.cuda.memory, k)},
        torch.cuda.random: {k: v for k, v in answers.items() if hasattr(torch.cuda.random, k)},
        torch.cuda.nvtx: {**nvtx, "range_end": _nothing},
        torch.cuda.nccl: {"version": _answer(NCCL_VERSION), "is_available": _answer(True)},
        torch.accelerator: _accelerator(card, answers),
        torch.version: {"cuda": CUDA_VERSION},
        torch.backends.cuda: {"is_built": _answer(True)},
        torch.backends.cudnn: {"is_available": _answer(True), "version": _answer(91002)},
        torch: _autocast(),
        torch.amp.autocast_mode: {"is_autocast_available": _answer(True)},
        torch._C: {"_get_accelerator": _answer(GPU), "_cuda_getCurrentRawStream": _answer(0)},
        optimizer: {
            "_foreach_supported_types": types,
            "_get_foreach_kernels_supported_devices": _answer(devices),
        },
        _foreach_utils: {
            "_foreach_supported_types": types,
            "_get_foreach_kernels_supported_devices": _answer(devices),
        },
    }


def _fake_tensor() -> Any:
    from torch._subclasses.fake_tensor import FakeTensor

    return FakeTensor


@contextmanager
def simulated_card(card: Card, recorder: Recorder) -> Iterator[None]:
    """torch.cuda answers as with the card; undone at the end."""
    with ExitStack() as stack:
        modules = _modules(card, recorder)
        for module, names in modules.items():
            for name, value in names.items():
                stack.enter_context(patch.object(module, name, value, create=True))
        dtype = torch.get_autocast_dtype("cpu")
        torch.set_autocast_dtype("cpu", torch.float16)  # CUDA's default
        stack.enter_context(torch.cpu.stream(torch.cuda.default_stream()))
        stack.callback(torch.set_autocast_dtype, "cpu", dtype)
        yield
