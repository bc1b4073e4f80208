"""Projections as ZeRO-3 runs them: frozen ones save inputs that their backward does not need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from ....ledger.ledger import HEAD_GRADIENT, TIED, Entry
from ....models.arch.adapters import Adapter, linears
from ....models.arch.arch import Arch
from ....pytorch.autograd.tape import Tape, Value
from ....pytorch.autograd.walk import BlockWalk, Checkpoint, walk
from ....pytorch.modelling.huggingface.head import head_walk
from ....pytorch.modelling.huggingface.layer import run_layer
from ....pytorch.modelling.huggingface.setting import BlockSetting
from ...step.activations import StageWalks
from ...step.layer_groups import LayerGroup


class Stage3Tape(Tape):
    """A tape on which projections of some names save their input.

    deepspeed 0.19.8 zero/partition_parameters.py:412 puts zero/linear.py:81
    LinearFunctionForZeroStage3 in the place of torch's linear; its `setup_context` saves input and
    weight, whichever gradient is needed. torch's own saves no input for a frozen weight.
    """

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self.names = frozenset(names)

    def op(self, name: str, *ins: Value, saves: Iterable[Value] = (), **rest: Any) -> Value:
        """Record an operation as `Tape` does, and save the input of a projection."""
        more = ins[:1] if name in self.names else ()
        return super().op(name, *ins, saves=(*saves, *more), **rest)


def adapter_bits(adapter: Adapter, bits: int, *, zero_init: bool) -> int:
    """Bits of an adapter: the whole model is cast to the training dtype, but not under zero.Init.

    deepspeed 0.19.8 runtime/engine.py:1850: the parameters of a model that zero.Init has sharded
    count as cast, adapters that PEFT made afterwards among them.
    """
    return max(adapter.bits, bits) if zero_init else bits


def _layer_walk(setting: BlockSetting, block: LayerGroup, *, grad: bool) -> BlockWalk:
    """The walk of one layer, as pytorch/modelling/huggingface/layer.py makes it, on a
    `Stage3Tape`. GPT-2's
    Conv1D calls addmm itself.
    """
    layer = block.layer
    tape = Stage3Tape(linear.name for linear in linears(layer) if not linear.transposed)
    bits = 32 if layer.fp32_residual else setting.bits
    x = tape.value("layer.input", setting.tokens * setting.hidden, bits, grad=grad)
    y = run_layer(tape, setting, x, layer, masked=block.masked)
    tape.hold(x)
    checkpoint: Checkpoint = "reentrant" if block.reentrant else "hooks"
    return walk(
        tape,
        x,
        y,
        recompute_core=block.recompute == "selective",
        checkpoint=checkpoint if block.recompute == "full" else "",
    )


def stage3_walks(
    walks: StageWalks, setting: BlockSetting, arch: Arch, blocks: tuple[LayerGroup, ...]
) -> StageWalks:
    """The walks of a frozen model whose projections save their inputs, the head's included."""
    first = None if walks.first is None else _layer_walk(setting, blocks[0], grad=False)
    layers = tuple(_layer_walk(setting, block, grad=True) for block in blocks)
    name = arch.head.name if arch.head is not None else "lm_head"
    before = walks.head.script
    named = tuple(before.sizes[tensor] for tensor in before.given)
    head = head_walk(setting, arch, Stage3Tape((name,)), named)
    return replace(walks, layers=layers, first=first, head=head)


def without_tied_gradient(entries: Iterable[Entry]) -> Iterator[Entry]:
    """The entries without the sum of a tied table's gradients: the head has a copy of the table."""
    return (e for e in entries if e.role not in (TIED, HEAD_GRADIENT))
