"""A torch that has counters and no card."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

TOTAL = 80 * 2**30
CONTEXT = 500 * 2**20


class FakeCuda:
    """torch.cuda's counters; `use` sets them as a phase would leave them."""

    def __init__(self) -> None:
        self.allocated = self.peak = self.reserved = 0
        self.retries = 0
        self.fraction: float | None = None
        self.device = 0
        self.history: list[str] = []
        self.events: list[dict[str, Any]] = []
        self.memory = SimpleNamespace(
            _record_memory_history=self._record, _snapshot=lambda: {"device_traces": [self.events]}
        )

    def _record(
        self, enabled: str | None = "all", *, clear_history: bool = False, **_: Any
    ) -> None:
        self.history.append("recording" if enabled else "stopped")
        if clear_history:
            self.events.clear()

    def current_device(self) -> int:
        """Which card is used."""
        return self.device

    def get_device_properties(self, number: int) -> Any:
        """What the card says of itself."""
        return SimpleNamespace(uuid=f"uuid-{number}")

    def use(self, allocated: int, peak: int, reserved: int) -> None:
        """What is allocated now, was at most, and is reserved."""
        self.allocated, self.peak, self.reserved = allocated, peak, reserved

    def init(self) -> None:
        """Nothing to start."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def mem_get_info(self) -> tuple[int, int]:
        """Free and total bytes: the context and the reserved memory are used."""
        return TOTAL - CONTEXT - self.reserved, TOTAL

    def memory_allocated(self) -> int:
        """Bytes now."""
        return self.allocated

    def max_memory_allocated(self) -> int:
        """Bytes at most since the last reset."""
        return self.peak

    def max_memory_reserved(self) -> int:
        """Reserved bytes at most."""
        return self.reserved

    def reset_peak_memory_stats(self) -> None:
        """The next phase starts where this one ended."""
        self.peak = self.allocated

    def memory_stats(self) -> dict[str, int]:
        """How often the cache was freed for another try."""
        return {"num_alloc_retries": self.retries}

    def host_memory_stats(self) -> dict[str, int]:
        """Pinned memory."""
        return {"allocated_bytes.peak": 4096}

    def set_per_process_memory_fraction(self, fraction: float) -> None:
        """The cap."""
        self.fraction = fraction

    def device_count(self) -> int:
        """How many cards a node has."""
        return 8

    def set_device(self, number: int) -> None:
        """Which card."""
        self.device = number

    def get_device_name(self) -> str:
        """The card's name."""
        return "Fake GPU"

    def is_available(self) -> bool:
        """There is a card."""
        return True


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """torch.cuda, with `import torch` giving nothing else."""
    found = FakeCuda()
    settings: list[str] = []

    def accept(text: str) -> None:
        if "nonsense" in text:
            raise ValueError("Unrecognized key 'nonsense'\nmore")
        settings.append(text)

    torch: Any = SimpleNamespace(
        cuda=found,
        __version__="9.9",
        version=SimpleNamespace(cuda="13.0"),
        _C=SimpleNamespace(_accelerator_setAllocatorSettings=accept),
        settings=settings,
        __spec__=object(),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    return found
