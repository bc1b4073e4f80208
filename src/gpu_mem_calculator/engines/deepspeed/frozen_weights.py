"""Projections as ZeRO-3 runs them: frozen ones keep their inputs although nothing asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from ...autograd.tape import Tape, Value
from ...autograd.walk import HOOKS, REENTRANT, BlockWalk, walk
from ...ledger.ledger import TIED, Entry
from ...model.adapters import Adapter, linears
from ...model.arch import Arch
from ...modelling.huggingface.head import head_walk
from ...modelling.huggingface.layer import run_layer
from ...modelling.huggingface.setting import BlockSetting
from ...step.activations import StageWalks
from ...step.layer_groups import LayerGroup


class Stage3Tape(Tape):
    """Projections of the given names keep what comes in.

    deepspeed 0.19.8 zero/partition_parameters.py:412 puts zero/linear.py:81
    LinearFunctionForZeroStage3 in the place of torch's linear; its `setup_context` saves input and
    weight, whichever gradient is wanted. torch's own keeps no input for a weight without one.
    """

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self.names = frozenset(names)

    def op(self, name: str, *ins: Value, saves: Iterable[Value] = (), **rest: Any) -> Value:
        """Record an operation, as `Tape` does."""
        more = ins[:1] if name in self.names else ()
        return super().op(name, *ins, saves=(*saves, *more), **rest)


def adapter_bits(adapter: Adapter, bits: int, *, zero_init: bool) -> int:
    """Width of adapters: the whole model is cast to the training dtype, but not under zero.Init.

    deepspeed 0.19.8 runtime/engine.py:1850: the parameters of a model that zero.Init has cut count
    as cast, adapters that PEFT made afterwards among them.
    """
    return max(adapter.bits, bits) if zero_init else bits


def _layer_walk(how: BlockSetting, block: LayerGroup, *, grad: bool) -> BlockWalk:
    """One layer, as modelling/huggingface/layer.py walks it. GPT-2's Conv1D calls addmm itself."""
    layer = block.layer
    tape = Stage3Tape(one.name for one in linears(layer) if not one.transposed)
    bits = 32 if layer.fp32_residual else how.bits
    x = tape.value("layer.input", how.tokens * how.hidden, bits, grad=grad)
    y = run_layer(tape, how, x, layer, masked=block.window is not None)
    tape.hold(x)
    whole = REENTRANT if block.reentrant else HOOKS
    return walk(
        tape, x, y, recompute_core=block.recompute == "selective",
        checkpoint=whole if block.recompute == "full" else "",
    )  # fmt: skip


def keeping(
    done: StageWalks, how: BlockSetting, arch: Arch, blocks: tuple[LayerGroup, ...]
) -> StageWalks:
    """The walks of a frozen model whose projections keep their inputs, the head's among them."""
    first = None if done.first is None else _layer_walk(how, blocks[0], grad=False)
    layers = tuple(_layer_walk(how, block, grad=True) for block in blocks)
    name = arch.head.name if arch.head is not None else "lm_head"
    head = head_walk(how, arch, Stage3Tape((name,)))
    return replace(done, layers=layers, first=first, head=head)


def without_sum(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Entries of a model whose head has a copy of the table: no gradient waits for another."""
    return (e for e in entries if e.role != TIED)
