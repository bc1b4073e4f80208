"""Traces a compiled model: torch captures and partitions its graph, inductor writes its code, and
that code then allocates and frees fake tensors.

Inductor asks the card for its properties and Triton for its version, and compiles the kernels that
it has written. Here it gets the answers of a card, and no kernel is compiled or run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes, _pop_mode, _push_mode

from ...run.run import Run
from ...runfile.text.errors import InputError
from .card import CUDA_VERSION, Card, answer, card_of, patched, simulated_cuda
from .device_names import GPU
from .no_triton import importable_triton
from .recorder import Recorder


def generated_code(
    graph: Any, card: Card, recorder: Recorder, *, backward: bool, donated: list[int] | None = None
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
        for context in (as_with_triton(card, recorder), V.set_debug_handler(DebugContext())):
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
def as_with_triton(card: Card, recorder: Recorder) -> Iterator[None]:
    """Give inductor the answers of a card and of Triton; undone at the end."""
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor import scheduler
    from torch._inductor.utils import get_triton_attrs_descriptor_version
    from torch.utils import _triton

    get_triton_attrs_descriptor_version()  # remembered before there seems to be one
    major, minor = card.capability
    interface = {
        "is_available": True,
        "current_device": 0,
        "get_device_properties": card.properties,
        "get_compute_capability": major * 10 + minor,
        "is_triton_capable": True,
        "raise_if_triton_unavailable": None,
    }
    replaced: dict[Any, dict[str, Any]] = {
        torch.version: {"cuda": CUDA_VERSION},
        CudaInterface: {name: staticmethod(answer(value)) for name, value in interface.items()},
        CudaInterface.Worker: {"get_device_properties": staticmethod(answer(card.properties))},
        _triton: {
            **dict.fromkeys(("has_triton", "has_triton_package"), answer(True)),
            "triton_hash_with_backend": answer(""),
        },
        scheduler: {"has_triton": answer(True)},
    }
    with simulated_cuda(card, recorder), patched(replaced), importable_triton():
        yield


KERNEL = re.compile(r"^\s+(\w+)\.run\(", re.MULTILINE)
RANDOM_STATE = 5056  # bytes of the state that torch.get_rng_state returns on the CPU
SEVERAL = (
    "training.compile is not traced for this model: torch splits it into {} graphs, and a trace "
    "does not see what runs between them; gpu-mem-calc calculate estimates it"
)
INPUTS = re.compile(r"def call\(.*\n\s+(.*) = args")  # their names
TANGENT = "tangents"  # the name of an output's gradient
MATMULS = {"mm": False, "bmm": False, "addmm": True, "bias_addmm": True, "baddbmm": True}


@contextmanager
def compiled_models(recorder: Recorder, run: Run) -> Iterator[None]:
    """torch.compile makes models whose allocations are recorded."""
    real = torch.compile
    backend = RecordingBackend(recorder, card_of(run))

    def compile_model(model: Any, **_: Any) -> Callable[..., Any]:
        optimized = real(model, backend=backend)

        def call(*args: Any, **kwargs: Any) -> Any:
            with not_recording(recorder):
                result = optimized(*args, **kwargs)
            if backend.graphs > 1:
                raise InputError(SEVERAL.format(backend.graphs))
            return result

        return call

    with patch.object(torch, "compile", compile_model):
        try:
            yield
        finally:
            torch._dynamo.reset()


@contextmanager
def not_recording(recorder: Recorder) -> Iterator[None]:
    """Take the recorder off torch's stack of modes, under which torch.compile compiles nothing."""
    mode = _pop_mode()
    assert mode is recorder
    try:
        yield
    finally:
        _push_mode(recorder)


class RecordingBackend:
    """A backend of torch.compile: inductor's passes and code, played on fake tensors."""

    def __init__(self, recorder: Recorder, card: Card) -> None:
        self.recorder, self.card = recorder, card
        self.graphs = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        """Compile one graph: AOTAutograd with inductor's decompositions and its partitioner."""
        from torch._functorch.aot_autograd import aot_module_simplified
        from torch._inductor.decomposition import select_decomp_table

        self.graphs += 1
        return aot_module_simplified(
            graph,
            inputs,
            fw_compiler=self._forward,
            bw_compiler=self._backward,
            partition_fn=_partition,
            decompositions=select_decomp_table(),
        )

    def _forward(self, graph: Any, inputs: Any) -> Any:
        code, constants = generated_code(graph, self.card, self.recorder, backward=False)
        play = CodePlayer(code, constants, self.recorder)

        def forward(args: list[Any]) -> Any:
            _push_mode(self.recorder)
            try:
                return play(args)
            finally:
                _pop_mode()

        return _boxed(forward)

    def _backward(self, graph: Any, inputs: Any) -> Any:
        context = torch._guards.TracingContext.try_get()
        facts = None if context is None else context.fw_metadata
        donated = None if facts is None else facts.bw_donated_idxs
        code, constants = generated_code(
            graph, self.card, self.recorder, backward=True, donated=donated
        )
        return _boxed(CodePlayer(code, constants, self.recorder))


def _boxed(function: Any) -> Any:
    """Mark a function that takes its arguments in a list, and empties it."""

    def call(args: list[Any]) -> Any:
        return function(args)

    call.__dict__["_boxed_call"] = True
    return call


def _partition(joint: Any, inputs: Any, **kwargs: Any) -> Any:
    """Inductor's passes over the joint graph, and the partitioner (_inductor/compile_fx.py)."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch._inductor.virtualized import V

    with V.set_fake_mode(fake_mode_of(joint)):
        joint_graph_passes(joint)
    return min_cut_rematerialization_partition(joint, inputs, compiler="inductor", **kwargs)


class CodePlayer:
    """The function `call` of inductor's code: it allocates and frees, and no kernel runs."""

    def __init__(self, code: str, constants: dict[str, Any], recorder: Recorder) -> None:
        self.recorder = recorder
        names = self._names()
        names |= dict.fromkeys(KERNEL.findall(code), SimpleNamespace(run=_nothing))
        names |= constants
        begin = code.index("class Runner") if "class Runner" in code else code.index("def call(")
        end = code.index("def get_args(") if "def get_args(" in code else len(code)
        exec(compile(code[begin:end], "inductor", "exec"), names)
        self.call = names["call"]
        found = INPUTS.search(code)
        self.inputs = found[1].split(", ") if found else []

    def __call__(self, args: list[Any]) -> Any:
        """Run the code on fake tensors.

        Gradients of the graph's outputs are held until backward has returned, as torch 2.11 does;
        torch 2.13 frees them earlier (autograd/function.py boxed_grads_call).
        """
        held = [one for name, one in zip(self.inputs, args, strict=False) if TANGENT in name]
        with torch.no_grad():
            result = self.call(args)
        held.clear()
        return result

    def _names(self) -> dict[str, Any]:
        """What the code calls, without a GPU."""
        matmuls = {name: self._matmul(bias) for name, bias in MATMULS.items()}
        return {
            "torch": CpuTorch(),
            "aten": torch.ops.aten,
            "inductor_ops": SimpleNamespace(_reinterpret_tensor=torch.as_strided),
            "reinterpret_tensor": torch.as_strided,
            "empty_strided_cuda": _empty,
            "empty_strided_cpu": _empty,
            "extern_kernels": SimpleNamespace(**matmuls),
            "get_raw_stream": _nothing,
            "assert_size_stride": _nothing,
            "assert_alignment": _nothing,
            "device": _nothing,
        }

    def _matmul(self, bias: bool) -> Callable[..., None]:
        return lambda *_, **__: self.recorder.matmul(with_bias=bias)


class CpuTorch:
    """torch without its GPU, and without states of random numbers."""

    def __init__(self) -> None:
        self.cuda = SimpleNamespace(set_device=_nothing, _DeviceGuard=_no_device)
        saving = {"run_and_save_rng_state": _run_and_save, "run_with_rng_state": _run_again}
        known = {"aten": torch.ops.aten, "prims": torch.ops.prims, "inductor": torch.ops.inductor}
        self.ops = SimpleNamespace(**known, higher_order=SimpleNamespace(**saving))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _run_and_save(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operation of a checkpointed layer, with the state of its random numbers."""
    return torch.empty(RANDOM_STATE, dtype=torch.uint8), op(*args, **kwargs)


def _run_again(state: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


@contextmanager
def _no_device(*_: Any) -> Iterator[None]:
    yield


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def _empty(size: Any, stride: Any, dtype: Any) -> Any:
    return torch.empty_strided(size, stride, dtype=dtype)
