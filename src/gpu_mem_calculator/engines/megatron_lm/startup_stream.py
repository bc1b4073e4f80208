"""Start-up of one Megatron rank, allocation by allocation."""

from __future__ import annotations

from ...autograd.events import BlockEvents, EventRecorder
from ...run.run import Run
from .options import bits, gradient_bits, option
from .parameters import stage_tensors, stepped

START = -3  # a block that no play of a layer has


def opening(run: Run) -> BlockEvents:
    """From the first parameter to the last main weight; what is left stays for good."""
    reel = EventRecorder()
    split = bool(option(run, "distributed_optimizer"))
    _buffers(run, reel, _weights(run, reel), split=split)
    if bits(run) < 32:
        for _, elements in stepped(run, split=split):  # optimizer.py:1012 `clone().float()`
            narrow = reel.make(elements * bits(run) // 8)
            reel.make(elements * 4)
            reel.free(narrow)
    return BlockEvents(sizes=tuple(reel.sizes), entry=-1, exit=-1, forward=tuple(reel.events))


def _weights(run: Run, reel: EventRecorder) -> list[int]:
    """Each chunk is built, moved to the GPU and cast, which norms and learnt positions need."""
    width, found = bits(run) // 8, [-1] * len(stage_tensors(run))
    numbered = list(enumerate(stage_tensors(run)))
    for chunk in range(int(run.virtual_stages)):
        own = [(i, t) for i, t in numbered if t.chunk == chunk]
        for moved in (False, True):
            for i, tensor in own:
                if tensor.moved == moved:
                    found[i] = reel.make(tensor.elements * (4 if moved else width))
        for i, tensor in own:
            if tensor.moved and width < 4:
                old, found[i] = found[i], reel.make(tensor.elements * width)
                reel.free(old)
    return found


def _buffers(run: Run, reel: EventRecorder, weights: list[int], *, split: bool) -> None:
    """Each chunk's buffers of gradients, the dense ones' and the experts'.

    With the distributed optimizer also of weights, which then leave their own tensors
    (distributed/param_and_grad_buffer.py:1160-1260).
    """
    width, wide = bits(run) // 8, gradient_bits(run) // 8
    made = list(enumerate(stage_tensors(run)))
    for chunk in range(int(run.virtual_stages)):
        for expert in (False, True):
            own = [(i, t) for i, t in made if t.chunk == chunk and t.expert == expert]
            total = sum(t.elements for _, t in own)
            for one in (width, wide) if split else (wide,):
                if total:
                    reel.make(total * one)
            for i, _ in own[::-1] if split else ():
                reel.free(weights[i])
