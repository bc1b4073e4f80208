"""transformers, made to believe that it runs: it looks for fake tensors and takes other ways."""

from __future__ import annotations

import logging
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


@contextmanager
def quiet() -> Iterator[None]:
    """No warnings about token ids that nobody uses, and no traceback that is then a sentence."""
    from transformers.utils.logging import get_verbosity, set_verbosity, set_verbosity_error

    verbosity, fakes = get_verbosity(), logging.getLogger("torch._subclasses.fake_tensor")
    level = fakes.level
    set_verbosity_error()
    fakes.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        set_verbosity(verbosity)
        fakes.setLevel(level)
