"""The ledger of one rank of DistributedDataParallel, or of PyTorch on one GPU.

While save_pretrained writes the model, rank 0's host holds the bytes of one file.
"""

from __future__ import annotations

from msgspec.structs import replace

from ....ledger.ledger import Ledger
from ....ledger.num import EMPTY
from ....run.run import BASE, COPY, Run
from ...life.saving import SAVED, file_bytes
from ...step.activations import FREE_AT_ONCE, activation_entries
from ...step.activations import setting as block_setting
from ...step.activations import walks as walk_stage
from ...step.between_steps import with_ema, with_saving
from ...step.block_events import block_runs
from ...step.instants import step, with_old_gradients
from ...step.layer_groups import layer_groups
from ...step.weights import trained_bits
from ...step.workspaces import workspace_entries
from .instants import with_first_step
from .options import PRECISIONS, option
from .startup import startup_instants
from .states import state_entries, tower_gradients, weight_gradients
from .stream import BucketStreamWriter


def ledger(run: Run) -> Ledger:
    """The ledger of one rank: the whole model, its gradients and optimizer states, activations."""
    precision = PRECISIONS[run.precision]
    setting = block_setting(run, precision)
    stack = layer_groups(run, 0, len(run.arch.layers))
    instants = step(
        tuple(group.stretch for group in stack),
        micro_batches=run.micro_batches,
        every=run.unrolled,
        reference=run.reference in (COPY, BASE) and run.rollout is None,
    )
    if run.gradients_in_forward:
        instants = with_old_gradients(instants)
    walks = walk_stage(run, setting, stack)
    entries = [*state_entries(run, precision, instants), *workspace_entries(run, instants)]
    if option(run, "gradient_as_bucket_view"):
        # copied into a view of the bucket (reducer.cpp)
        walks = replace(walks, gradients=FREE_AT_ONCE)
    else:
        entries += weight_gradients(run, precision, stack, instants)
        entries += tower_gradients(run, precision, instants)
    entries += activation_entries(run, setting, stack, instants, walks)
    if run.reference:
        from ...step.reference import reference_entries

        entries += reference_entries(run, precision, setting, stack, instants, walks.head)
    whole_step = Ledger(
        (*startup_instants(run), *(i.instant for i in instants)),
        tuple(entries),
        block_runs(stack, instants, walks) if run.unrolled else {},
        writer=BucketStreamWriter,
        old_grads=run.gradients_in_forward,
    )
    whole_step = with_first_step(run, whole_step, trained_bits(run, precision))
    if run.rollout is not None:
        from ...generation.rollout import with_rollout  # most runs generate nothing

        whole_step = with_rollout(run, setting, stack, whole_step)
    whole_step = with_ema(run, whole_step)
    if run.evaluation is not None:
        from ...step.evaluation import with_evaluation

        whole_step = with_evaluation(run, setting, whole_step, ledger)
    if run.generates is not None:
        from ...generation.between_steps import with_generating

        whole_step = with_generating(run, setting, whole_step)
    return with_saving(run, whole_step, EMPTY, file_bytes(run, precision), SAVED)
