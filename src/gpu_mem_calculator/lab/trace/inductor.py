"""torch.compile's inductor without a GPU: a graph becomes the code that inductor writes for a card.

Inductor asks the card for its properties and Triton for its version, and compiles the kernels that
it has written. Here it gets the answers of a card, and its code is not compiled: only the part that
allocates and frees is used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

GPU = torch.device("cuda", 0)


def generated_code(
    graph: Any, card: SimpleNamespace, *, backward: bool, donated: list[int] | None = None
) -> tuple[str, dict[str, Any]]:
    """The Python code that inductor writes for one direction of a model, and its constants.

    `donated`: the saved tensors whose memory backward may reuse (AOTAutograd's bw_donated_idxs).
    """
    from torch._inductor import graph as lowering
    from torch._inductor.debug import DebugContext
    from torch._inductor.fx_passes.post_grad import post_grad_passes, view_to_reshape
    from torch._inductor.virtualized import V
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    with ExitStack() as stack:
        stack.enter_context(_disable_current_modes())
        graph = deepcopy(graph)
        view_to_reshape(graph)
        with torch.no_grad(), V.set_fake_mode(fake_mode_of(graph)):
            post_grad_passes(graph, False)
        mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
        inputs = _on_gpu(graph, mode)
        for context in (as_with_triton(card), V.set_debug_handler(DebugContext())):
            stack.enter_context(context)
        stack.enter_context(patch.object(lowering, "get_donated_idxs", lambda: donated))
        lowered = lowering.GraphLowering(
            graph,
            example_inputs=inputs,
            shape_env=mode.shape_env,
            graph_id=int(backward),
            is_backward=backward,
            is_inference=False,
        )
        for context in (V.set_fake_mode(mode), V.set_graph_handler(lowered), torch.no_grad()):
            stack.enter_context(context)
        stack.enter_context(V.set_extern_kernel_nodes([]))
        lowered.run(*inputs)
        code, _ = lowered.codegen()
    return str(getattr(code, "value", code)), dict(lowered.constants)


def fake_mode_of(graph: Any) -> Any:
    """The mode of a graph's fake tensors."""
    inputs = (node.meta.get("val") for node in graph.graph.nodes if node.op == "placeholder")
    return next(value.fake_mode for value in inputs if isinstance(value, FakeTensor))


def _on_gpu(graph: Any, mode: Any) -> list[Any]:
    """Move the graph's fake tensors from the CPU to a GPU; returns its inputs."""

    def moved(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            size, stride = map(_sizes, (value.shape, value.stride()))
            meta = torch.empty_strided(size, stride, dtype=value.dtype, device="meta")
            return FakeTensor(mode, meta, GPU)
        if isinstance(value, list | tuple):
            return type(value)(map(moved, value))
        return value

    def device(value: Any) -> Any:
        return GPU if isinstance(value, torch.device) else value

    nodes = list(graph.graph.nodes)
    for node in nodes:
        node.meta.pop("tensor_meta", None)
        if "val" in node.meta:
            node.meta["val"] = moved(node.meta["val"])
        if node.op == "call_function":
            node.args = torch.fx.node.map_aggregate(node.args, device)
            node.kwargs = torch.fx.node.map_aggregate(node.kwargs, device)
    graph.recompile()
    return [node.meta["val"] for node in nodes if node.op == "placeholder"]


def _sizes(sizes: Any) -> list[int]:
    """Sizes as numbers; the state of random numbers has a symbol's."""
    return [size.node.hint if isinstance(size, torch.SymInt) else size for size in sizes]


@contextmanager
def as_with_triton(card: SimpleNamespace) -> Iterator[None]:
    """Give inductor the answers of a card and of Triton; undone at the end."""
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor import scheduler
    from torch._inductor.utils import get_triton_attrs_descriptor_version
    from torch.utils import _triton

    def answer(value: Any) -> Callable[..., Any]:
        return lambda *_, **__: value

    get_triton_attrs_descriptor_version()  # remembered before there seems to be one
    capability = card.major * 10 + card.minor
    answers = [
        (torch.cuda, "is_available", answer(True)),
        (torch.cuda, "current_device", answer(0)),
        (torch.cuda, "device_count", answer(1)),
        (torch.cuda, "get_device_properties", answer(card)),
        (torch.cuda, "get_device_capability", answer((card.major, card.minor))),
        (torch.cuda, "is_bf16_supported", answer(True)),
        (torch.cuda, "get_rng_state", lambda *_: torch.get_rng_state()),
        (torch.version, "cuda", "13.0"),
        (CudaInterface, "is_available", staticmethod(answer(True))),
        (CudaInterface, "current_device", staticmethod(answer(0))),
        (CudaInterface, "get_device_properties", staticmethod(answer(card))),
        (CudaInterface.Worker, "get_device_properties", staticmethod(answer(card))),
        (CudaInterface, "get_compute_capability", staticmethod(answer(capability))),
        (CudaInterface, "is_triton_capable", staticmethod(answer(True))),
        (CudaInterface, "raise_if_triton_unavailable", staticmethod(answer(None))),
        (_triton, "has_triton", answer(True)),
        (_triton, "has_triton_package", answer(True)),
        (_triton, "triton_hash_with_backend", answer("")),
        (scheduler, "has_triton", answer(True)),
    ]
    with ExitStack() as stack:
        for place, name, value in answers:
            stack.enter_context(patch.object(place, name, value, create=True))
        if find_spec("triton") is None:
            stack.enter_context(patch.dict(sys.modules, _empty_triton()))
        yield


def _empty_triton() -> dict[str, ModuleType]:
    """A package `triton` in which inductor finds the one name that it looks for."""
    triton, language = ModuleType("triton"), ModuleType("triton.language")
    language.__dict__["dtype"] = type("dtype", (), {})
    triton.__dict__["language"] = language
    return {"triton": triton, "triton.language": language}
