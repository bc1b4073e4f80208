"""Start-up of one Megatron rank, allocation by allocation."""

from __future__ import annotations

from ....ledger.num import sized
from ....pytorch.autograd.events import BlockEvents, EventRecorder
from ....run.run import Run
from .options import bits, gradient_bits, option
from .parameters import stage_tensors, stepped_parameters

STARTUP_BLOCK = -3  # a number that no layer has, nor head or embedding


def startup_events(run: Run) -> BlockEvents:
    """Allocations and frees from the first parameter to the last main weight; what is not freed
    stays until the end.
    """
    recorder = EventRecorder()
    split = bool(option(run, "distributed_optimizer"))
    _record_buffers(run, recorder, _record_weights(run, recorder), split=split)
    if bits(run) < 32:
        for _, elements in stepped_parameters(
            run, split=split
        ):  # optimizer.py:1012 `clone().float()`
            narrow = recorder.make(sized(elements, bits(run)))
            recorder.make(sized(elements, 32))
            recorder.free(narrow)
    return BlockEvents(
        sizes=tuple(recorder.sizes), entry=-1, exit=-1, forward=tuple(recorder.events)
    )


def _record_weights(run: Run, recorder: EventRecorder) -> list[int]:
    """Each chunk is built, moved to the GPU and cast, which norms and learnt positions need.
    Returns the tensors of the weights.
    """
    parameters = list(enumerate(stage_tensors(run)))
    width, tensors = bits(run), [-1] * len(parameters)
    for chunk in range(int(run.virtual_stages)):
        in_chunk = [(i, parameter) for i, parameter in parameters if parameter.chunk == chunk]
        for moved in (False, True):
            for i, parameter in in_chunk:
                if parameter.moved == moved:
                    tensors[i] = recorder.make(sized(parameter.elements, 32 if moved else width))
        for i, parameter in in_chunk:
            if parameter.moved and width < 32:
                old, tensors[i] = tensors[i], recorder.make(sized(parameter.elements, width))
                recorder.free(old)
    return tensors


def _record_buffers(run: Run, recorder: EventRecorder, weights: list[int], *, split: bool) -> None:
    """Each chunk's gradient buffers, one of the dense parameters and one of the experts.

    With the distributed optimizer (`split`) also buffers of weights, which then leave their own
    tensors (distributed/param_and_grad_buffer.py:1160-1260).
    """
    width, grad_width = bits(run), gradient_bits(run)
    parameters = list(enumerate(stage_tensors(run)))
    for chunk in range(int(run.virtual_stages)):
        for expert in (False, True):
            buffered = [(i, p) for i, p in parameters if p.chunk == chunk and p.expert == expert]
            total = sum(parameter.elements for _, parameter in buffered)
            for element_bits in (width, grad_width) if split else (grad_width,):
                if total:
                    recorder.make(sized(total, element_bits))
            for i, _ in buffered[::-1] if split else ():
                recorder.free(weights[i])
