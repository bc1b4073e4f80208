"""Training steps of a module that somebody has at hand, on fake tensors.

The module itself is not touched: a copy gets fake parameters on a simulated card. One loop of three
steps: forward, loss, backward, optimizer step, `zero_grad`; without an optimizer one forward pass
that keeps no graph.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from ..runfile.resolve.resolved_run import ResolvedRun
from ..runfile.text.errors import InputError, nearest
from ..training.optimizers import OPTIMIZERS
from ..training.step.workspaces import run_cublas_bytes
from .jobs.model import import_extra, loss_of
from .script.recording import NO_CARD, VALUES
from .trace.attention import AttentionKernels
from .trace.card import card_of, simulated_card
from .trace.cuda import as_on_cuda
from .trace.device_names import GPU, DeviceNames
from .trace.huggingface import as_if_real, convertible_modules, silent_fakes
from .trace.memory_kinds import KindWatcher, block_kinds
from .trace.recorder import Recorder
from .trace.run import STEPS, RunTrace, phase_of, run_trace

SUMMED = (
    "the model returns no loss, so the sum of its first output is the loss; give loss=function, "
    "which gets the output"
)
LEARNING_RATE = 1e-3
Loss = Callable[[Any], Any]


def trace_module(
    model: Any, sample: Any, optimizer: Any, loss: Loss | None, resolved: ResolvedRun
) -> RunTrace:
    """The trace of a module's steps on the card of a run."""
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"the model is a {type(model).__name__}; give a torch.nn.Module")
    recorder, kernels = Recorder(int(run_cublas_bytes(resolved.run))), AttentionKernels()
    watch, notes = KindWatcher(recorder), list[str]()
    with _simulated(resolved, recorder, kernels, watch), _own_errors():
        _run(model, sample, optimizer, loss, watch, notes)
    kinds = block_kinds(watch, phase_of(recorder))
    said = (*notes, *kernels.notes())
    return run_trace(resolved, recorder.recorded(), recorder.makers, kinds, said)


@contextmanager
def _simulated(
    resolved: ResolvedRun, recorder: Recorder, kernels: AttentionKernels, watch: KindWatcher
) -> Iterator[None]:
    """torch as with the card, and what runs recorded; undone at the end."""
    with ExitStack() as stack:
        for context in (
            FakeTensorMode(allow_non_fake_inputs=True),
            convertible_modules(),
            silent_fakes(),
            as_if_real() if "transformers" in sys.modules else nullcontext(),
            as_on_cuda(resolved.run.compute_capability, kernels),
            torch.autograd.set_multithreading_enabled(False),
            simulated_card(card_of(resolved.run), recorder),
            watch.modules(),
            recorder.recording(),
            DeviceNames(recorder.sides).everywhere(),
        ):
            stack.enter_context(context)
        yield


@contextmanager
def _own_errors() -> Iterator[None]:
    """A sentence for what a trace cannot do; errors of the model's own code stay as they are."""
    try:
        yield
    except Exception as error:
        said = str(error).strip().splitlines()[:1]
        if type(error).__name__ in VALUES:
            why = "reads the values of a tensor, which fake ones do not have"
            raise InputError(f"the model {why}: {said[0] if said else ''}") from error
        if any(words in str(error) for words in NO_CARD):
            raise InputError(f"the model needs a real GPU: {said[0]}") from error
        raise


def _run(
    model: Any, sample: Any, optimizer: Any, loss: Loss | None, watch: KindWatcher, notes: list[str]
) -> None:
    fakes: dict[int, Any] = {}
    fake = _copied(model, fakes)
    args, kwargs = _arguments(tree_map_only(torch.Tensor, _faked, sample))
    watch.mark("model")
    made = None if optimizer is None else _optimizer(optimizer, fake, fakes)
    watch(fake, made)
    if made is None:
        with torch.no_grad():
            fake(*args, **kwargs)
            watch.mark("s0.a0.fwd")
        return
    for step in range(STEPS):
        value = _loss(fake(*args, **kwargs), loss, notes)
        watch.mark(f"s{step}.a0.fwd")
        value.backward()
        del value
        watch.mark(f"s{step}.a0.bwd")
        made.step()
        watch.mark(f"s{step}.opt")
        made.zero_grad()


def _copied(model: Any, fakes: dict[int, Any]) -> Any:
    """A copy of the module with fake tensors; `fakes` gets that of each parameter, by its id."""
    for tensor in (*model.parameters(), *model.buffers()):
        if id(tensor) not in fakes:
            fakes[id(tensor)] = _faked(tensor)
    return copy.deepcopy(model, dict(fakes))


def _faked(tensor: Any) -> Any:
    """A fake tensor of the same form on the card."""
    new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=GPU)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(new, requires_grad=tensor.requires_grad)
    return new.requires_grad_(tensor.requires_grad)


def _arguments(sample: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the module: of a tensor, a dict, or a tuple."""
    if isinstance(sample, Mapping):
        return (), dict(sample)
    return (tuple(sample), {}) if isinstance(sample, tuple | list) else ((sample,), {})


def _loss(output: Any, loss: Loss | None, notes: list[str]) -> Any:
    value = loss_of(output) if loss is None else loss(output)
    if not isinstance(value, torch.Tensor):
        whose = "the model returns" if loss is None else "loss returns"
        raise InputError(f"{whose} a {type(value).__name__}; it must be or begin with a tensor")
    if value.numel() != 1 and loss is not None:
        shape = " x ".join(map(str, value.shape))
        raise InputError(f"loss returns a tensor of {shape}; it must be one number")
    if not value.requires_grad:
        raise InputError("the loss takes no gradient; is every parameter frozen?")
    if value.numel() == 1:
        return value
    notes[:] = [SUMMED]
    return value.sum()


def _optimizer(given: Any, model: Any, fakes: dict[int, Any]) -> Any:
    """The optimizer of a copy: of the given one's kind and options, or by its class or name."""
    if isinstance(given, torch.optim.Optimizer):
        known = inspect.signature(type(given)).parameters
        defaults = {key: value for key, value in given.defaults.items() if key in known}
        return type(given)([_group(one, fakes) for one in given.param_groups], **defaults)
    params = [one for one in model.parameters() if one.requires_grad]
    if not params:
        raise InputError("no parameter of the model takes a gradient; leave the optimizer out")
    if isinstance(given, str):
        row = OPTIMIZERS.get(given.lower())
        if row is None or row.matrices:
            known_names = [name for name, one in OPTIMIZERS.items() if not one.matrices]
            hint = nearest(given, known_names)
            listed = f"one of {', '.join(known_names)}, an optimizer of torch.optim, or its class"
            raise InputError(f"optimizer={given!r} is not {listed}{hint}")
        module, _, name = row.make.partition(":")
        return getattr(import_extra(module, "measure"), name)(
            params, lr=LEARNING_RATE, **row.arguments
        )
    if not (isinstance(given, type) and issubclass(given, torch.optim.Optimizer)):
        kind = given.__name__ if isinstance(given, type) else type(given).__name__
        raise InputError(
            f"the optimizer is a {kind}; give an optimizer of torch, its class or name"
        )
    return given(params, lr=LEARNING_RATE)


def _group(group: Mapping[str, Any], fakes: dict[int, Any]) -> dict[str, Any]:
    missing = sum(id(one) not in fakes for one in group["params"])
    if missing:
        raise InputError(f"{missing} of the optimizer's parameters are not the model's")
    return {**group, "params": [fakes[id(one)] for one in group["params"]]}
