"""Megatron-DeepSpeed: Megatron shards the model, ZeRO shards the states of each part.

deepspeedai/Megatron-DeepSpeed 6acc370a with DeepSpeed 0.19.8. Its training script runs ZeRO 0 and 1
under DeepSpeed's PipelineEngine, with one stage or more, and ZeRO 2 and 3 without
(--no-pipeline-parallel). The parameters that DeepSpeed trains on a rank are Megatron's shards.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ....ledger.num import Num
from ....ledger.units import MIB
from ....run.engine import Engine, HostLibraries
from ....run.run import Run
from ..deepspeed.engine import zero_streams
from ..deepspeed.options import OPTIMIZERS
from ..deepspeed.options import OPTIONS as DEEPSPEED
from ..megatron_lm.checks import PP, layout_problems, option_problems
from ..megatron_lm.options import LOCAL
from ..megatron_lm.options import OPTIONS as MEGATRON
from .checks import model_problems

if TYPE_CHECKING:
    from ....ledger.ledger import Ledger

TITLE = "Megatron+DeepSpeed"
OF_ZERO = ("zero_stage", "offload_optimizer", "reduce_bucket_size", "overlap_comm")
OF_SCORES = ("masked_softmax_fusion", "attention_softmax_in_fp32")
OPTIONS: dict[str, Any] = {
    **{key: DEEPSPEED[key] for key in OF_ZERO},
    "transformer_implementation": LOCAL,
    **{key: MEGATRON[key] for key in (*OF_SCORES, "make_vocab_size_divisible_by")},
}


def _with_defaults(run: Run) -> Run:
    """The run with the default of every option that is not set.

    Gradient accumulation fusion is off: DeepSpeed keeps the gradients, so Megatron's wgrad kernels
    have no buffer to add into.
    """
    options = {k: v for k, v in run.options.items() if v is not None}
    defaults = {**OPTIONS, "gradient_accumulation_fusion": False}
    return replace(run, options=defaults | options)


def problems(run: Run) -> Iterator[str]:
    """One message for each setting that Megatron or ZeRO refuses, or that is not modelled."""
    run = _with_defaults(run)
    yield from option_problems(run, TITLE)
    yield from layout_problems(run, TITLE)
    yield from model_problems(run, TITLE)
    stage, place = run.options["zero_stage"], run.options["offload_optimizer"]
    if stage not in (0, 1, 2, 3):
        yield f"engine.zero_stage={stage} is not a ZeRO stage; try 0, 1, 2 or 3"
    elif stage > 1 and run.mesh.pp > 1:
        yield f"engine.zero_stage={stage} does not go with {PP}={run.mesh.pp}; try 1"
    if place not in ("none", "cpu"):
        yield f"engine.offload_optimizer={place!r} is not modelled here; try 'cpu' or 'none'"
    elif place == "cpu" and stage == 0:
        yield "engine.offload_optimizer='cpu' needs ZeRO; try zero_stage 1"
    if run.virtual_stages > 1:
        why = "DeepSpeed's pipeline does not interleave"
        yield f"parallelism.virtual_pipeline_size={run.virtual_stages}: {why}; set it to 1"


def ledger(run: Run) -> Ledger:
    """The ledger of one rank of the run's pipeline stage."""
    from .step_ledger import ledger

    return ledger(_with_defaults(run))


def stage_layers(run: Run) -> list[int]:
    """The number of layers of each pipeline stage."""
    from ...step.pipeline import stage_layers

    return stage_layers(run)


def parameters(run: Run) -> Num:
    """Elements of this rank's part of the model, before ZeRO shards it."""
    from .step_ledger import parameters

    return parameters(_with_defaults(run))


ENGINE = Engine(
    name="megatron_deepspeed",
    title=TITLE,
    transformers=False,
    loss_kernels="",
    side_streams=zero_streams,
    options=OPTIONS,
    axes=frozenset({"tp", "pp"}),
    optimizers=frozenset(OPTIMIZERS),
    host_libraries=HostLibraries(780 * MIB, "72 runs, 672 to 860 MiB"),  # PyTorch's: not measured
    problems=problems,
    ledger=ledger,
    stage_layers=stage_layers,
    parameters=parameters,
)
