"""The ledger of a rank, of either version of FSDP.

A run that saves gathers a full state dict on rank 0, in the dtype of the shards. Version 2 gathers
one parameter at a time, a tied one by each of its names (torch 2.13 distributed/
_state_dict_utils.py _gather_state_dict, which accelerate 1.15.0 accelerator.py get_state_dict calls
with cpu_offload). Version 1 gathers one unit at a time and copies it to the host, where its
parameters are cloned; the root's copy stays until all layers are done (torch 2.13 distributed/fsdp/
_state_dict_utils.py _full_pre_state_dict_hook, _full_post_state_dict_hook; _flat_param.py to_cpu).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ....ledger.ledger import Ledger, Writer
from ....ledger.num import EMPTY, larger, sized
from ....ledger.source import code
from ....pytorch.modelling.huggingface.setting import BlockSetting
from ....run.run import FULL_DICT, FULL_DICT_ON_GPUS, Precision, Run
from ...optimizers import OPTIMIZERS, state_bytes
from ...step.activations import StageWalks, activation_entries
from ...step.activations import setting as block_setting
from ...step.between_steps import with_ema, with_saving
from ...step.block_events import BlockRun, block_runs
from ...step.layer_groups import LayerGroups, layer_groups
from ...step.weights import trained_total
from ...step.workspaces import workspace_entries
from .activations import between_entries
from .cache import MakeEntries
from .instants import FsdpInstant, ends_apart
from .options import PRECISIONS, as_computed, option

UNIT_CODE = code("torch 2.13 distributed/fsdp/_state_dict_utils.py, _flat_param.py to_cpu")
PARAMETER_CODE = code("torch 2.13 distributed/_state_dict_utils.py _gather_state_dict")


def with_full_state_dict(run: Run, plan: Any, ledger: Ledger) -> Ledger:
    """The ledger with a save after the step; `plan`: the layout of either version."""
    if run.saving not in (FULL_DICT, FULL_DICT_ON_GPUS):
        return ledger
    bits = PRECISIONS[run.precision][0]
    model = sized(run.scaled(run.arch.num_parameters), bits)
    states = state_bytes(OPTIMIZERS[run.optimizer], trained_total(run), bits)  # after the model
    copies = 2 if run.ema else 1  # the average is gathered, too, and stays until all is written
    if option(run, "fsdp_version") == 1:
        largest = reduce(larger, (unit.flat for _, unit in plan.kinds), plan.root.flat)
        if run.saving == FULL_DICT_ON_GPUS:
            return with_saving(run, ledger, larger(model + largest, states), EMPTY, UNIT_CODE)
        return with_saving(run, ledger, largest, model * copies + plan.root.flat, UNIT_CODE)
    whole = sized(run.scaled(run.arch.largest_weight), bits)
    twice = sized(run.arch.embedding[0].numel, bits) if run.arch.tied else EMPTY
    if run.saving == FULL_DICT_ON_GPUS:
        return with_saving(run, ledger, larger(model + twice, states), EMPTY, PARAMETER_CODE)
    return with_saving(run, ledger, whole, model * copies + twice, PARAMETER_CODE)


class FsdpVersion(Struct, frozen=True):
    """What a version of FSDP does in its own way; each function takes the version's layout.

    states: the entries of a run's parameters
    walks: of layers and head, which say when the whole gradients of a block are freed
    until: the instant up to which the whole gradients of a block stay alive
    writer: writes the stream; None is the usual way
    """

    states: MakeEntries
    walks: Callable[[Run, BlockSetting, LayerGroups], StageWalks]
    until: Callable[[Any, FsdpInstant], str]
    writer: Callable[[Any], Callable[[Ledger], Writer] | None]


def unit_ledger(run: Run, version: FsdpVersion) -> Ledger:
    """Shards, units that are gathered or reduced, activations."""
    _, compute = PRECISIONS[run.precision]
    computed = as_computed(run)
    stack = ends_apart(layer_groups(run, 0, len(run.arch.layers)))
    states = version.states(run, stack)
    plan = states.plan
    instants = plan.step_instants
    setting = block_setting(computed, Precision(compute, compute))
    walks = version.walks(computed, setting, stack)
    in_step = tuple(i for i in instants if not i.instant.step)
    beside = (*between_entries(plan, walks), *workspace_entries(run, in_step))
    saved = tuple(activation_entries(computed, setting, stack, instants, walks))
    entries = (*states.shards, *beside, *states.units, *saved)
    plays = _block_runs(plan, stack, walks, version) if run.unrolled else {}
    named = (*states.startup, *(i.instant for i in instants))
    writer, old_grads = version.writer(plan), run.gradients_in_forward
    groups = () if run.unrolled else (states.shards, states.units)
    whole_step = Ledger(named, entries, plays, writer, old_grads=old_grads, groups=groups)
    whole_step = with_ema(run, whole_step)
    if run.evaluation is not None:
        from ...step.evaluation import with_evaluation

        whole_step = with_evaluation(run, setting, whole_step, lambda r: unit_ledger(r, version))
    return with_full_state_dict(run, plan, whole_step)


def _block_runs(
    plan: Any, stack: LayerGroups, walks: StageWalks, version: FsdpVersion
) -> dict[str, BlockRun]:
    """The block of each instant of an unrolled run. Whole gradients stay alive until they are
    copied into what is reduced.
    """
    runs = block_runs(stack, plan.step_instants, walks)
    for instant in plan.instants:
        block_run = runs.get(instant.step.name)
        if block_run is not None and not block_run.forward:
            runs[instant.step.name] = replace(block_run, until=version.until(plan, instant))
    return runs
