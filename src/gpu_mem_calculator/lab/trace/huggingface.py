"""Makes modules of torch and transformers take fake tensors as real ones: both branch on them."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .card import patched


def as_if_real() -> AbstractContextManager[Any]:
    """transformers makes masks as with real tensors: none where every sequence is full."""
    from transformers import masking_utils

    return patch.object(masking_utils, "is_tracing", lambda *_: False)


@contextmanager
def convertible_modules() -> Iterator[None]:
    """`module.to(dtype)` works on parameters that something else refers to weakly.

    torch swaps a fake parameter with its converted copy, and refuses where there is a weak
    reference; fake tensors always have one. A real parameter is not swapped and keeps its
    attributes, such as those of ZeRO-3.
    """
    swap_tensors = torch.utils.swap_tensors

    def swap(one: Any, other: Any) -> None:
        try:
            swap_tensors(one, other)
        except RuntimeError:
            one.__class__, other.__class__ = other.__class__, one.__class__
            one.__dict__, other.__dict__ = other.__dict__, one.__dict__
            torch._C._swap_tensor_impl(one, other)
        for name, value in vars(other).items():
            vars(one).setdefault(name, value)

    with patch.object(torch.utils, "swap_tensors", swap):
        yield


@contextmanager
def without_warnings() -> Iterator[None]:
    """Without transformers' warnings, and without fake tensors' log of errors and the warning that
    they have no address, for which FSDP version 1 asks.
    """
    from transformers.utils.logging import get_verbosity, set_verbosity, set_verbosity_error

    verbosity = get_verbosity()
    set_verbosity_error()
    try:
        with warnings.catch_warnings(), silent_fakes():
            warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
            yield
    finally:
        set_verbosity(verbosity)


@contextmanager
def silent_fakes() -> Iterator[None]:
    """Without fake tensors' log of errors, which are raised as well."""
    fakes = logging.getLogger("torch._subclasses.fake_tensor")
    level = fakes.level
    fakes.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        fakes.setLevel(level)


@contextmanager
def simulated_generate() -> Iterator[None]:
    """`generate` runs as on a GPU, to its last token.

    Inference mode is off, because its tensors are dispatched elsewhere. Experts run as batched
    matmuls while one token at a time is decoded. Fake values never end a sequence, so the length
    does; and no candidate of an assistant model is accepted.
    """
    from transformers.generation import utils

    inference, tensor_sum = torch.inference_mode, torch.Tensor.sum

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

    replaced: dict[Any, dict[str, Any]] = {
        utils.GenerationMixin: {
            "_optimize_model_for_decode": _batched,
            "_has_unfinished_sequences": unfinished,
        },
        utils.StopCheck: {"__call__": lambda *_: False},
        torch: {"inference_mode": lambda *a: inference(*a) if a else torch.no_grad()},
        torch.Tensor: {"sum": summed},
        FakeTensor: {"__deepcopy__": lambda tensor, _: tensor},  # the generation config is copied
    }
    with patched(replaced):
        yield


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
