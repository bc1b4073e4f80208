"""A client of the service that tests share."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest


@pytest.fixture
def client(service: str) -> Iterator[httpx.Client]:
    """A client of it."""
    with httpx.Client(base_url=service, timeout=60) as made:
        yield made
