"""transformers, made to believe that it runs: it looks for fake tensors and takes other ways."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def as_if_real() -> Iterator[None]:
    """transformers' masks as with real tensors: none where every sequence is full."""
    from transformers import masking_utils

    found = masking_utils.is_tracing
    masking_utils.is_tracing = lambda *_: False
    try:
        yield
    finally:
        masking_utils.is_tracing = found
