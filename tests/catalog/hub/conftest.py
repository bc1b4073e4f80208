"""Every test of look-ups starts as the command line does, and leaves no state."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_mem_calculator.catalog.hub import sources
from gpu_mem_calculator.catalog.hub.access import Access, allow
from gpu_mem_calculator.catalog.hub.bounds import Allowance

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def fresh(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """No proxy, no keys, no cache of the hub, nothing remembered, everything allowed; waiting for
    the next try takes no time.
    """
    for name in os.environ:
        own = name.startswith(("HF_", "HUGGING_FACE_", "TRANSFORMERS_", "AWS_"))
        if (own and name != "HF_HUB_OFFLINE") or name.lower() in PROXIES:
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(tmp_path_factory.getbasetemp() / "no-hf-home"))
    monkeypatch.setattr(Allowance, "pause", lambda *_: None)
    allow(Access())
    sources.forget()
    yield
    allow(Access())


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where huggingface_hub keeps its things."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path / "hf"
