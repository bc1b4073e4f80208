"""docs/models.md shows what the program says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpu_mem_calculator.catalog.hub import bucket, environment, request
from gpu_mem_calculator.catalog.hub import request as refusals
from gpu_mem_calculator.catalog.hub.access import Access
from tests.catalog.hub.document import BLOCK, PAGE, TOKEN, page


@pytest.fixture(scope="module")
def text() -> str:
    """The page."""
    return PAGE.read_text(encoding="utf-8")


def test_the_page_is_as_written(text: str) -> None:
    """`python -m tests.catalog.hub.document` would change nothing; no token and no key is in it."""
    now = page()
    assert now == text
    assert len(BLOCK.findall(text)) == 4
    assert TOKEN not in text


def test_the_variables_of_the_page_are_the_program_s(text: str) -> None:
    """Each that the program reads is named."""
    code = "".join(
        Path(str(module.__file__)).read_text("utf-8") for module in (environment, bucket)
    )
    read = set(re.findall(r'"((?:HF|AWS|HUGGING_FACE|XDG)_[A-Z0-9_]+)"', code))
    assert len(read) > 15
    other = {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_ENDPOINT"}  # `…_RELATIVE_URI`; an alias
    assert {name for name in read - other if name not in text} == set()


def test_the_bounds_of_the_page_are_the_program_s(text: str) -> None:
    """Bytes, minutes, tries and how long a server may ask for."""
    assert (Access().size, Access().seconds) == (256 * 2**20, 600)
    assert "256 MiB and ten minutes" in text
    assert (request.TRIES, bucket.TRIES) == (4, 3)
    assert "is repeated up to three times" in text
    assert f"up to {refusals.MOST_WAIT:.0f} seconds" in text
