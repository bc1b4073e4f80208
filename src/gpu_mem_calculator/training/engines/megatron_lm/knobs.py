"""What is worth turning in a run of Megatron-LM."""

from __future__ import annotations

from ....run.recompute import FULL, SELECTIVE
from ...knob import LOSS, RECOMPUTE, SEQUENCE, SHARDS, Knob, Offer, Saving, sizes
from ...losses import MEGATRON, planned_losses

KNOBS = (
    *sizes("tensor", "pipeline", "context", "expert"),
    Knob(key="parallelism.virtual_pipeline_size"),
    Knob(key="training.recompute.recompute_num_layers"),
    Knob(key=SEQUENCE, values=(False, True)),
    Knob(
        key="engine.distributed_optimizer",
        values=(False, True),
        kind=SHARDS,
        savings=(Saving(True, "distributed optimizer", (False,)),),
        also={"engine.overlap_param_gather": True},
        words=("distributed optimizer", "dist-opt"),
    ),
    Knob(
        key="engine.account_for_embedding_in_pipeline_split",
        values=(False, True),
        also={"engine.account_for_loss_in_pipeline_split": True},
        words=("embedding counts as a layer", "emb-layer"),
    ),
    Knob(
        key="engine.account_for_loss_in_pipeline_split",
        words=("head counts as a layer", "head-layer"),
    ),
    Knob(key=RECOMPUTE, values=(SELECTIVE, FULL)),
    Knob(key=LOSS, values=planned_losses(MEGATRON)),
    Knob(key="engine.overlap_grad_reduce", values=(True,)),
    Knob(key="engine.moe_token_dispatcher_type", values=("alltoall", "allgather"), of_experts=True),
)
OFFERS: tuple[Offer, ...] = ()
