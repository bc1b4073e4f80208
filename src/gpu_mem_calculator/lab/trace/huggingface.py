"""Makes transformers run fake tensors as real ones: it checks for tracing and branches on it."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def as_if_real() -> Iterator[None]:
    """transformers makes masks as with real tensors: none where every sequence is full."""
    from transformers import masking_utils

    is_tracing = masking_utils.is_tracing
    masking_utils.is_tracing = lambda *_: False
    try:
        yield
    finally:
        masking_utils.is_tracing = is_tracing


@contextmanager
def without_warnings() -> Iterator[None]:
    """Without transformers' warnings, and without fake tensors' log of errors and the warning that
    they have no address, for which FSDP version 1 asks.
    """
    from transformers.utils.logging import get_verbosity, set_verbosity, set_verbosity_error

    verbosity, fakes = get_verbosity(), logging.getLogger("torch._subclasses.fake_tensor")
    level = fakes.level
    set_verbosity_error()
    fakes.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
            yield
    finally:
        set_verbosity(verbosity)
        fakes.setLevel(level)


@contextmanager
def simulated_generate() -> Iterator[None]:
    """`generate` runs as on a GPU, to its last token.

    Inference mode is off, because its tensors are dispatched elsewhere. Experts run as batched
    matmuls while one token at a time is decoded. Fake values never end a sequence, so the length
    does; and no candidate of an assistant model is accepted.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from transformers.generation import utils

    mixin, inference, tensor_sum = utils.GenerationMixin, torch.inference_mode, torch.Tensor.sum
    methods = {
        name: getattr(mixin, name)
        for name in ("_optimize_model_for_decode", "_has_unfinished_sequences")
    }
    check = utils.StopCheck.__call__

    def unfinished(model: Any, *_: Any, **__: Any) -> bool:
        names = sys._getframe(1).f_locals
        length = names["cur_len"] if "running_sequences" in names else names["input_ids"].shape[1]
        max_length = names["generation_config"].max_length
        names.clear()  # this copy would keep every local variable alive
        return bool(length < max_length)

    def summed(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if sys._getframe(1).f_code.co_name == "_assisted_decoding":
            return 0
        return tensor_sum(tensor, *args, **kwargs)

    mixin._optimize_model_for_decode = _batched
    mixin._has_unfinished_sequences = unfinished
    utils.StopCheck.__call__ = lambda *_: False
    torch.inference_mode = lambda *a: inference(*a) if a else torch.no_grad()
    torch.Tensor.sum = summed
    FakeTensor.__deepcopy__ = lambda tensor, _: tensor  # the generation config is copied
    try:
        yield
    finally:
        for name, function in methods.items():
            setattr(mixin, name, function)
        utils.StopCheck.__call__ = check
        torch.inference_mode, torch.Tensor.sum = inference, tensor_sum
        del FakeTensor.__deepcopy__


@contextmanager
def _batched(model: Any) -> Iterator[None]:
    """generation/utils.py:2313 _optimize_model_for_decode, which does nothing on the CPU."""
    implementations = model.get_experts_implementation()
    if "grouped_mm" not in implementations.values():
        yield
        return
    model.set_experts_implementation(
        {k: "batched_mm" if v == "grouped_mm" else v for k, v in implementations.items()}
    )
    try:
        yield
    finally:
        model.set_experts_implementation(implementations)
