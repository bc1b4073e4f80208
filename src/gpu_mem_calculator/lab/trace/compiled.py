"""Traces a compiled model: torch captures and partitions its graph, inductor writes its code, and
that code then allocates and frees fake tensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import _pop_mode, _push_mode

from ...run.run import Run
from ...runfile.text.errors import InputError
from .inductor import fake_mode_of, generated_code
from .recorder import Recorder

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
    backend = RecordingBackend(recorder, _card(run))

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


def _card(run: Run) -> SimpleNamespace:
    """The properties of the run's card for which inductor asks."""
    major, minor = map(int, run.compute_capability.split("."))
    return SimpleNamespace(
        name=run.card,
        major=major,
        minor=minor,
        total_memory=run.card_bytes,
        multi_processor_count=run.multiprocessors,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        max_threads_per_block=1024,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=232448,
        shared_memory_per_multiprocessor=233472,
        L2_cache_size=62914560,
        gcnArchName="",
    )


class RecordingBackend:
    """A backend of torch.compile: inductor's passes and code, played on fake tensors."""

    def __init__(self, recorder: Recorder, card: SimpleNamespace) -> None:
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
        code, constants = generated_code(graph, self.card, backward=False)
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
        code, constants = generated_code(graph, self.card, backward=True, donated=donated)
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
