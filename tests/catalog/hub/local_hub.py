"""A hub on this machine for tests, with a token, and what is said where it is not read."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from gpu_mem_calculator.catalog.hub.access import Access
from gpu_mem_calculator.runfile.config import ModelConfig
from gpu_mem_calculator.runfile.find_model.model_source import find_model
from gpu_mem_calculator.runfile.text.errors import InputError
from tests.catalog.hub.servers import Asked, serving
from tests.catalog.hub.test_checkpoint import CONFIG, WHOLE, safetensors_bytes

SECRET = "hf_not_to_be_told"
CONFIG_BYTES = json.dumps(CONFIG).encode()
WEIGHTS = safetensors_bytes(WHOLE)
TABLE: dict[str, bytes | str] = {"/config.json": CONFIG_BYTES, "/model.safetensors": WEIGHTS}
LOCAL = Access(files=False, hosts=frozenset({"127.0.0.1"}))


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look-ups are on, with a token."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_TOKEN", SECRET)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[dict[str, bytes | str], Asked]]:
    """A hub on this machine: what it has, which a test may change, and what it is asked."""
    table = dict(TABLE)
    with serving(table) as (address, asked):
        monkeypatch.setenv("HF_ENDPOINT", address)
        yield table, asked


def why(name: str = "owner/tiny") -> str:
    """What is said of a model that is not read; never the token."""
    with pytest.raises(InputError) as caught:
        find_model(ModelConfig(name=name), headers=True)
    assert SECRET not in str(caught.value)
    return str(caught.value)
