"""Every test of look-ups begins as the command line does, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpu_mem_calculator.hub import checkpoint
from gpu_mem_calculator.hub.access import Access, allow

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No proxy, no token, nothing remembered, everything allowed."""
    for name in ("HF_TOKEN", *PROXIES, *map(str.upper, PROXIES)):
        monkeypatch.delenv(name, raising=False)
    allow(Access())
    checkpoint._failed.clear()
    checkpoint._looked_up.cache_clear()
    yield
    allow(Access())
