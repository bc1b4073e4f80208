"""What FSDP version 1 does in its own way."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from .....ledger.ledger import Ledger, Writer
from .....ledger.num import nothing
from .....pytorch.modelling.huggingface.head import head_walk
from .....pytorch.modelling.huggingface.setting import BlockSetting
from .....run.run import Run
from ....step.activations import FREE_TOGETHER, StageWalks
from ....step.activations import walks as walk_stage
from ....step.layer_groups import LayerGroup
from ....step.model_inputs import named_until_return
from ..instants import FsdpInstant
from ..options import option
from ..unit_ledger import FsdpVersion
from .instants import POST
from .layout import FlatLayout
from .states import state_entries
from .stream import FlatStreamWriter, UnlimitedStreamWriter


def _walks(run: Run, setting: BlockSetting, stack: tuple[LayerGroup, ...]) -> StageWalks:
    """The walks of layers and head. Beside adapters, frozen weights of layers take gradients, too,
    because they are views of a flat parameter that does; those of the root do not.
    """
    taking = walk_stage(run, replace(setting, frozen=False), stack)
    if run.frozen:
        kept = (taking.first or taking.layers[0]).keeps_input
        named = named_until_return(run, setting, kept=kept)
        taking = replace(taking, head=head_walk(setting, run.arch, None, named))
    return taking


def _until(plan: FlatLayout, instant: FsdpInstant) -> str:
    """Until the flat gradient is made; the root's is made last."""
    if instant.action != "layer":
        return instant.step.instant.moved("reduce.root").name
    after = "after" if plan.below == POST and instant.layer > 0 else "reduce"
    return f"{instant.step.name}.{after}"


def _writer(plan: FlatLayout) -> Callable[[Ledger], Writer] | None:
    """Where nothing is gathered, nothing says how far the host is ahead."""
    if nothing(plan.root.several):
        return None
    return FlatStreamWriter if option(plan.run, "limit_all_gathers") else UnlimitedStreamWriter


VERSION_1 = FsdpVersion(
    states=state_entries,
    gradients=lambda run: FREE_TOGETHER,
    walks=_walks,
    until=_until,
    writer=_writer,
)
